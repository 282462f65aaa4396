// Gitops does with resources what GitOps tools do with them, by their own libraries: Flux's kustomize-controller,
// Argo CD's application controller, and the health checks of both. It is called as `gitops TOOL`, reads what is asked
// for as JSON, and writes the answer as JSON. The API is the one that KUBECONFIG names. Built from Go modules by
// tests/cluster/tools.py.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	tools := map[string]func() (any, error){"health": health, "flux": flux, "argo": argo}
	if len(os.Args) != 2 || tools[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: gitops health|flux|argo")
		os.Exit(2)
	}
	answer, err := tools[os.Args[1]]()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// read decodes what is asked for.
func read(asked any) error {
	return json.NewDecoder(os.Stdin).Decode(asked)
}

// api returns the address of the API and the login, without the client's own limit of calls: neither controller has it.
func api() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err == nil {
		config.QPS = -1
	}
	return config, err
}

// subject names an object in answers.
func subject(object *unstructured.Unstructured) string {
	return object.GetKind() + "/" + object.GetName()
}
