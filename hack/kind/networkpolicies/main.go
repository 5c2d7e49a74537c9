package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

// queue is the number of the netfilter queue. The module's own command has 100.
const queue = 102

func main() {
	node := flag.String("node", "", "`name` of the node that this runs on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, *node)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "networkpolicies: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, node string) error {
	if node == "" {
		return errors.New("--node is missing")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	policies, namespaces, pods := factory.Networking().V1().NetworkPolicies(), factory.Core().V1().Namespaces(), factory.Core().V1().Pods()
	controller, err := networkpolicy.NewController(client, policies, namespaces, pods, nil, nil, nil, nil, networkpolicy.Config{
		QueueID: queue, NodeName: node, NFTableName: table + "-module",
	})
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	factory.Start(running.Done())
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(running) }()
	// Nothing is queued before the controller knows what is allowed.
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("stopped before it knew all of %s", kind)
		}
	}
	if err := makeRules(); err != nil {
		return fmt.Errorf("making rules: %w", err)
	}
	select {
	case err = <-ended:
		return errors.Join(errors.New("the controller has ended"), err, removeRules())
	case <-ctx.Done():
	}
	// While rules are there, packets wait for somebody to decide.
	err = removeRules()
	cancel()
	err = errors.Join(err, <-ended)
	factory.Shutdown()
	return err
}
