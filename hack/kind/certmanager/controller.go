package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	crca "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	crselfsigned "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"         // registers the issuer
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned" // registers the issuer
	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"golang.org/x/sync/errgroup"
)

// controllers are the release's own constructors, by the names under which the
// release runs them. Those of ACME, Vault, Venafi, of Ingress and Gateway and
// of metrics are left out, and with them the clouds' SDKs.
var controllers = []string{
	issuers.ControllerName,
	clusterissuers.ControllerName,
	approver.ControllerName,
	crca.CRControllerName,
	crselfsigned.CRControllerName,
	trigger.ControllerName,
	issuing.ControllerName,
	keymanager.ControllerName,
	requestmanager.ControllerName,
	readiness.ControllerName,
	revisionmanager.ControllerName,
}

// What the release's flags default to.
const (
	workers        = 5
	minimumBackoff = time.Hour
	maximumBackoff = 32 * time.Hour
)

type controllerOptions struct {
	kubeconfig string
	namespace  string // of what belongs to ClusterIssuers
	health     string
}

// runController runs the controllers until the context ends.
func runController(ctx context.Context, o controllerOptions) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         o.kubeconfig,
		KubernetesAPIQPS:   20,
		KubernetesAPIBurst: 50,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: o.namespace},
		CertificateOptions: controller.CertificateOptions{
			// Annotations are copied to requests, but for those that kubectl,
			// Flux and Argo CD keep for themselves.
			CopiedAnnotationPrefixes:                 []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"},
			CertificateRequestMinimumBackoffDuration: minimumBackoff,
			CertificateRequestMaximumBackoffDuration: maximumBackoff,
		},
	})
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	known := controller.Known()
	for _, name := range controllers {
		construct, ok := known[name]
		if !ok {
			return fmt.Errorf("this version of cert-manager has no controller %q", name)
		}
		loop, err := construct(factory)
		if err != nil {
			return fmt.Errorf("building the controller %q: %w", name, err)
		}
		group.Go(func() error {
			if err := loop.Run(workers, ctx); err != nil {
				return fmt.Errorf("controller %q: %w", name, err)
			}
			return nil
		})
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	group.Go(func() error { return serveHealth(ctx, o.health) })
	logf.FromContext(ctx).Info("running", "controllers", controllers)
	err = group.Wait()
	shared.HTTP01ResourceMetadataInformersFactory.Shutdown()
	shared.KubeSharedInformerFactory.Shutdown()
	shared.SharedInformerFactory.Shutdown()
	return err
}

// serveHealth answers /livez until the context ends.
func serveHealth(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return fmt.Errorf("answering /livez: %w", err)
	}
	return nil
}
