package failfast_test

import (
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/belay-dev/belay/webhook/client/failfast"
)

// A client whose calls end within 10 s, dead peers or not.
func ExampleConfig() {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := client.New(failfast.Config(cfg, failfast.RequestTimeout(10*time.Second)), client.Options{})
	fmt.Println(c, err)
}

// Two clients that share one connection, and find out together that it is dead.
func ExampleClient() {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg, httpClient, err := failfast.Client(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	clientset, err := kubernetes.NewForConfigAndClient(cfg, httpClient)
	fmt.Println(clientset, err)
	c, err := client.New(cfg, client.Options{HTTPClient: httpClient})
	fmt.Println(c, err)
}
