package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/ptr"
)

// leasePolling is how often one looks at a Lease that another has.
const leasePolling = 100 * time.Millisecond

// leaseTurn is a Lease by get and update, as many a program has it written by hand.
type leaseTurn struct {
	leases coordinationclient.LeaseInterface
	me     string
	held   *coordinationv1.Lease
}

// newLeaseTurn makes the Lease where there is none yet.
func newLeaseTurn(ctx context.Context, config *rest.Config, namespace, me string) (*leaseTurn, error) {
	c, err := kubernetes.NewForConfig(onItsOwn(config))
	if err != nil {
		return nil, err
	}
	t := &leaseTurn{leases: c.CoordinationV1().Leases(namespace), me: me}
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lockName}}
	if _, err := t.leases.Create(ctx, l, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return t, nil
}

// try takes the Lease where nobody has it.
func (t *leaseTurn) try(ctx context.Context) (bool, error) {
	l, err := t.leases.Get(ctx, lockName, metav1.GetOptions{})
	if err != nil || ptr.Deref(l.Spec.HolderIdentity, "") != "" {
		return false, err
	}
	now := metav1.NowMicro()
	l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &t.me, &now, &now, new(int32(15))
	if t.held, err = t.leases.Update(ctx, l, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}

func (t *leaseTurn) acquire(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, leasePolling, true, t.try)
}

func (t *leaseTurn) release(ctx context.Context) error {
	t.held.Spec.HolderIdentity = nil
	_, err := t.leases.Update(ctx, t.held, metav1.UpdateOptions{})
	return err
}

func (t *leaseTurn) stop(context.Context) error { return nil }

// electionTurn is client-go's leader election with the durations that Kubernetes' own
// components and controller-runtime have by default, and in its favour with
// ReleaseOnCancel: without it the next one waits for the lease to run out.
type electionTurn struct {
	config leaderelection.LeaderElectionConfig
	cancel context.CancelFunc
	ended  chan struct{}
}

func newElectionTurn(config *rest.Config, namespace, me string) (*electionTurn, error) {
	c, err := kubernetes.NewForConfig(onItsOwn(config))
	if err != nil {
		return nil, err
	}
	return &electionTurn{config: leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: "election"},
			Client:     c.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: me},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second, ReleaseOnCancel: true,
	}}, nil
}

func (t *electionTurn) acquire(ctx context.Context) error {
	leads := make(chan struct{})
	config := t.config
	config.Callbacks = leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { close(leads) }, OnStoppedLeading: func() {}}
	elector, err := leaderelection.NewLeaderElector(config)
	if err != nil {
		return err
	}
	ctx, t.cancel = context.WithCancel(ctx) //nolint:gosec // release calls it
	t.ended = make(chan struct{})
	go func() {
		defer close(t.ended)
		elector.Run(ctx)
	}()
	select {
	case <-leads:
		return nil
	case <-t.ended:
		return context.Cause(ctx)
	}
}

func (t *electionTurn) release(context.Context) error {
	t.cancel()
	<-t.ended
	return nil
}

func (t *electionTurn) stop(context.Context) error { return nil }

// etcdTurn is etcd's own mutex, in the etcd that the API server stores everything in:
// there is no API server in between, and no authentication.
type etcdTurn struct {
	*concurrency.Mutex
	client  *clientv3.Client
	session *concurrency.Session
}

func newEtcdTurn(ctx context.Context, url string) (*etcdTurn, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Context: ctx})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(c)
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("a session with etcd: %w", err)
	}
	return &etcdTurn{Mutex: concurrency.NewMutex(session, "/bench/"+lockName), client: c, session: session}, nil
}

func (t *etcdTurn) acquire(ctx context.Context) error { return t.Lock(ctx) }

func (t *etcdTurn) release(ctx context.Context) error { return t.Unlock(ctx) }

func (t *etcdTurn) stop(context.Context) error {
	_ = t.session.Close() // it ends with its lease, too
	return t.client.Close()
}
