// What makes NetworkPolicies hold on a test node: SIG Network's own reference, in the network namespace in which it is
// started. Pods' first packets go to it by nftables; it lets them pass or drops them. Built by tests/cluster/tools.py.
//
//	netpol <kubeconfig> <name of the node>
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, node string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	watched := informers.NewSharedInformerFactory(client, 0)
	core, networking := watched.Core().V1(), watched.Networking().V1()
	controller, err := networkpolicy.NewController(
		client, networking.NetworkPolicies(), core.Namespaces(), core.Pods(), nil, nil, nil, nil,
		// A node whose enforcer was killed lets everything pass, as one that never had it.
		networkpolicy.Config{NodeName: node, QueueID: 100, FailOpen: true, NRIdisabled: true},
	)
	if err != nil {
		return err
	}
	watched.Start(ctx.Done())
	return controller.Run(ctx)
}
