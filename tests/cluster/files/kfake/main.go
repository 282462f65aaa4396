// Brokers of another implementation of Kafka's protocol: kfake of franz-go, in memory, on loopback. It prints their
// addresses, one a line, and serves until it is told to end. Built by tests/cluster/tools.py.
//
//	kfake <number of brokers> <id of the cluster> <log.cleaner.backoff.ms> [<number of an unknown request> ...]
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(brokers, clusterID, backoff string, unknown []string) error {
	count, err := strconv.Atoi(brokers)
	if err != nil {
		return err
	}
	known := kversion.Stable()
	for _, text := range unknown {
		key, err := strconv.ParseInt(text, 10, 16)
		if err != nil {
			return err
		}
		known.SetMaxKeyVersion(int16(key), -1)
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(count),
		kfake.ClusterID(clusterID),
		kfake.MaxVersions(known),
		kfake.BrokerConfigs(map[string]string{"log.cleaner.backoff.ms": backoff}),
	)
	if err != nil {
		return err
	}
	defer cluster.Close()
	for _, address := range cluster.ListenAddrs() {
		fmt.Println(address)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
	return nil
}
