package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reasons of the events about the policies.
const (
	eventPoliciesFaulty = "PoliciesFaulty"
	eventPoliciesSound  = "PoliciesSound"
)

// PolicyWatch says aloud, on every replica, when the policies that gate Jobs are
// not as they must be: in the log, in an event and by Ready. It stops nothing: those
// who hold a lock, or wait for one, go on and keep out of each other's way; whoever
// is created meanwhile and not gated is taken in when the policies are back. Safe
// for concurrent use.
type PolicyWatch struct {
	cluster client.Reader // a cache of the policies
	shipped []client.Object
	events  events.EventRecorder
	about   runtime.Object
	count   func(faults int)
	changed bell // for itself
	sweep   *sweeper

	mu     sync.Mutex
	looked bool
	faults []string
}

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingadmissionpolicies;mutatingadmissionpolicybindings;validatingadmissionpolicies;validatingadmissionpolicybindings,verbs=get;list;watch

// WatchPolicies adds to a manager made with CacheOptions the watch on the policies,
// and the sweep for what they missed, for which Reconcile then waits. The events
// are about the object that an operator looks at.
func (r *Reconciler) WatchPolicies(ctx context.Context, mgr ctrl.Manager, about runtime.Object) (*PolicyWatch, error) {
	shipped, err := shippedPolicies()
	if err != nil {
		return nil, err
	}
	p := &PolicyWatch{
		cluster: mgr.GetCache(), shipped: shipped, events: r.Events, about: about,
		count: r.metrics.setMissingPolicies, changed: newBell(),
	}
	p.sweep = newSweeper(r, p)
	r.sweep = p.sweep
	if err := p.observe(ctx, mgr.GetCache()); err != nil {
		return nil, err
	}
	return p, errors.Join(mgr.Add(p), mgr.Add(p.sweep))
}

// observe rings the bells when one of the policies changes.
func (p *PolicyWatch) observe(ctx context.Context, informers cache.Informers) error {
	ring := func(obj any) {
		if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if o, ok := obj.(client.Object); ok && strings.HasPrefix(o.GetName(), policyPrefix) {
			p.changed.ring()
			p.sweep.bell.ring()
		}
	}
	for _, kind := range policyKinds() {
		informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T, which Kubernetes has from 1.36 on: %w", kind, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: ring, UpdateFunc: func(_, obj any) { ring(obj) }, DeleteFunc: ring,
		}); err != nil {
			return fmt.Errorf("watching %T: %w", kind, err)
		}
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica
// looks at the policies.
func (p *PolicyWatch) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (p *PolicyWatch) Start(ctx context.Context) error {
	for {
		faults, _, err := p.look(ctx)
		if err != nil {
			return err // only a cache was read
		}
		p.tell(ctx, faults)
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		}
	}
}

// look is what is wrong with the policies, and the mark of findFaults.
func (p *PolicyWatch) look(ctx context.Context) (faults []string, mark string, err error) {
	return findFaults(ctx, p.cluster, p.shipped)
}

// tell tells what has changed since the last time.
func (p *PolicyWatch) tell(ctx context.Context, faults []string) {
	p.mu.Lock()
	before, first := p.faults, !p.looked
	p.faults, p.looked = faults, true
	p.mu.Unlock()
	p.count(len(faults))
	log := ctrl.LoggerFrom(ctx).WithName("policies")
	switch {
	case !first && slices.Equal(before, faults), first && len(faults) == 0:
	case len(faults) == 0:
		log.Info("the policies are as they must be again")
		p.events.Eventf(p.about, nil, corev1.EventTypeNormal, eventPoliciesSound, "Gate",
			"DistLock's policies are as they must be again; Jobs and CronJobs that were annotated meanwhile are taken in")
	default:
		log.Error(errFaulty(faults), "annotated Jobs may start without their lock: apply config/policy of this version")
		p.events.Eventf(p.about, nil, corev1.EventTypeWarning, eventPoliciesFaulty, "Gate", "%s",
			shorten("Annotated Jobs may start without their lock: apply config/policy of this version. "+errFaulty(faults).Error()))
	}
}

func errFaulty(faults []string) error { return errors.New(strings.Join(faults, "; ")) }

// Ready is a healthz.Checker that fails while a policy is missing, differs or does
// not compile, and names it; and, on the leader, while the sweep fails.
func (p *PolicyWatch) Ready(*http.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.looked {
		return errors.New("the policies have not been looked at yet")
	}
	if len(p.faults) > 0 {
		return errFaulty(p.faults)
	}
	return p.sweep.failure()
}

// bell wakes one sleeper; rung several times meanwhile it wakes it once.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}
