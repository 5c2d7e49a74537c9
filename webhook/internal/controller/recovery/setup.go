package recovery

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/belay-dev/belay/webhook/api/v1alpha1"
	"github.com/belay-dev/belay/webhook/internal/facts"
)

// Clients are what the drivers read and write with, beside the manager's caches.
type Clients struct {
	Dynamic dynamic.Interface
	Kube    kubernetes.Interface
	// Live reads and writes past every cache.
	Live client.Client
}

// drivers keeps one driver for each policy in force.
type drivers struct {
	clients    Clients
	policies   client.Reader
	compiled   *facts.RecoveryPolicies
	namespaces client.Reader
	events     events.EventRecorder
	log        logr.Logger
	own        string

	kick chan struct{}
	pods *facts.PodWatch
	mu   sync.Mutex
	run  map[string]*driver
}

// Setup adds the drivers to the manager. They run while it leads.
func Setup(ctx context.Context, mgr manager.Manager, c Clients, own string) error {
	d := &drivers{
		clients: c, policies: mgr.GetCache(), compiled: facts.NewRecoveryPolicies(mgr.GetCache(), c.Live), namespaces: mgr.GetCache(), events: mgr.GetEventRecorder("belay-controller"),
		log: mgr.GetLogger().WithName("recovery"), own: own, kick: make(chan struct{}, 1), run: map[string]*driver{},
	}
	d.pods = facts.NewPodWatch(c.Kube, d.podChanged)
	policies, err := mgr.GetCache().GetInformer(ctx, &v1alpha1.RecoveryPolicy{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching RecoveryPolicies: %w", err)
	}
	changed := func(any) {
		select {
		case d.kick <- struct{}{}:
		default: // there is one already
		}
	}
	if _, err := policies.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: func(o any) {
		if u, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = u.Obj
		}
		if p, ok := o.(*v1alpha1.RecoveryPolicy); ok {
			d.compiled.Deleted(p)
		}
		changed(o)
	}}); err != nil {
		return fmt.Errorf("watching RecoveryPolicies: %w", err)
	}
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(facts.NamespaceKind)
	spaces, err := mgr.GetCache().GetInformer(ctx, &ns, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching namespaces: %w", err)
	}
	if _, err := spaces.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: d.namespaceChanged, UpdateFunc: func(_, o any) { d.namespaceChanged(o) }}); err != nil {
		return fmt.Errorf("watching namespaces: %w", err)
	}
	return mgr.Add(d)
}

// NeedLeaderElection makes the manager start the drivers on the leader only.
func (d *drivers) NeedLeaderElection() bool { return true }

// Start keeps the drivers as the policies in force want them, until the context ends, and
// waits for them to stop.
func (d *drivers) Start(ctx context.Context) error {
	var watch sync.WaitGroup
	watch.Go(func() { _ = d.pods.Start(ctx) }) // it returns nil
	defer watch.Wait()
	defer d.endAll()
	for {
		if err := d.follow(ctx); err != nil && ctx.Err() == nil {
			d.log.Error(err, "following the policies")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.kick:
		}
	}
}

// follow starts what is in force and stops what is not.
func (d *drivers) follow(ctx context.Context) error {
	var all v1alpha1.RecoveryPolicyList
	if err := d.policies.List(ctx, &all); err != nil {
		return fmt.Errorf("listing recovery policies: %w", err)
	}
	wanted := map[string]*facts.RecoveryPolicy{}
	var selectors []string
	for i := range all.Items {
		p := &all.Items[i]
		if p.Status.InForce == nil || p.DeletionTimestamp != nil {
			continue
		}
		c, err := d.compiled.Compile(p)
		if err != nil {
			// It compiled when it was accepted, by an older belay.
			d.log.Error(err, "policy does not compile; its objects are not brought back", "policy", p.Name)
			continue
		}
		wanted[p.Name] = c
		selectors = append(selectors, c.Expressions.Selectors()...)
	}
	d.pods.Want(selectors)
	for name, r := range d.drivers() {
		if wanted[name] == r.policy {
			delete(wanted, name)
			continue
		}
		d.mu.Lock()
		delete(d.run, name)
		d.mu.Unlock()
		r.end()
		d.log.Info("driver stopped", "policy", name)
	}
	for name, c := range wanted {
		r := &driver{
			policy: c, log: d.log.WithValues("policy", name), objects: watchObjects(ctx, d.clients.Dynamic, c), pods: d.pods,
			live: facts.NewPods(d.clients.Kube, d.pods), namespaces: d.namespaces, client: d.clients.Live, events: d.events, own: d.own,
		}
		r.start(ctx)
		d.mu.Lock()
		d.run[name] = r
		d.mu.Unlock()
		d.log.Info("driver started", "policy", name, "resource", facts.ResourceOf(c.Resource).String(), "recover", c.Spec.Recover)
	}
	return nil
}

// drivers are those that run now.
func (d *drivers) drivers() map[string]*driver {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.run)
}

func (d *drivers) endAll() {
	for _, r := range d.drivers() {
		r.end()
	}
}

func (d *drivers) podChanged(c facts.PodChange) {
	for _, r := range d.drivers() {
		r.podChanged(c)
	}
}

func (d *drivers) namespaceChanged(obj any) {
	if ns, ok := obj.(*metav1.PartialObjectMetadata); ok {
		for _, r := range d.drivers() {
			r.namespaceChanged(ns.Name)
		}
	}
}
