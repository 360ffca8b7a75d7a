package main

import (
	"context"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

type lockClient = gentype.Client[*v1alpha1.DistLock]

// newBareClient is a typed client with nothing to it: JSON over a connection of its
// own and without a limit, as package lock has them.
func newBareClient(config *rest.Config, namespace string) (*lockClient, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, v1alpha1.GroupVersion)
	config = onItsOwn(config)
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	config.GroupVersion, config.APIPath = &v1alpha1.GroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	r, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return gentype.NewClient("distlocks", r, runtime.NewParameterCodec(scheme), namespace, func() *v1alpha1.DistLock { return &v1alpha1.DistLock{} }), nil
}

// onItsOwn gives a client a connection of its own: client-go keeps one for each dialer.
func onItsOwn(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Dial = (&net.Dialer{}).DialContext
	return config
}

// bareFloor is a lock that one process holds and another watches, both with a bare
// client: a renewal is the least that a change of a lock costs a holder, and its event
// the least until another process knows.
type bareFloor struct {
	client  *lockClient
	lock    *v1alpha1.DistLock
	hold    v1alpha1.Hold
	watch   watch.Interface
	samples floorSamples
}

// floorSamples are from the sending of an update to its answer, and to its event.
type floorSamples struct{ update, event []time.Duration }

// newBareFloor makes the lock in a namespace. stop ends the watch.
func newBareFloor(ctx context.Context, s *stage, namespace string) (*bareFloor, error) {
	f := &bareFloor{lock: &v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "floor"}}}
	if err := s.Client().Create(ctx, f.lock); err != nil {
		return nil, err
	}
	var err error
	if f.client, err = newBareClient(s.Config(), namespace); err != nil {
		return nil, err
	}
	err = f.write(ctx, func(state protocol.State) (protocol.State, error) {
		return state.Acquire(protocol.NewWaiter(state.Spec, "bench", nil, nil, new(int32(floorLease)), nil), time.Now())
	})
	if err != nil {
		return nil, fmt.Errorf("taking the floor's lock: %w", err)
	}
	f.hold = f.lock.Status.Holders[0]
	watcher, err := newBareClient(s.Config(), namespace)
	if err != nil {
		return nil, err
	}
	f.watch, err = watcher.Watch(ctx, f.after())
	return f, err
}

// after is how to watch the lock from its last version on.
func (f *bareFloor) after() metav1.ListOptions {
	return metav1.ListOptions{
		ResourceVersion: f.lock.ResourceVersion, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, f.lock.Name).String(),
	}
}

func (f *bareFloor) stop() { f.watch.Stop() }

// sample renews once.
func (f *bareFloor) sample(ctx context.Context) error {
	sent := time.Now()
	if err := f.renew(ctx, sent); err != nil {
		return err
	}
	update := time.Since(sent)
	if err := f.awaitEvent(ctx); err != nil {
		return err
	}
	f.samples.update = append(f.samples.update, update)
	f.samples.event = append(f.samples.event, time.Since(sent))
	return nil
}

func (f *bareFloor) renew(ctx context.Context, now time.Time) error {
	err := f.write(ctx, func(state protocol.State) (protocol.State, error) {
		return state.Renew(f.hold.Owner, f.hold.FencingToken, now)
	})
	if err != nil {
		return fmt.Errorf("renewing the floor's lock: %w", err)
	}
	return nil
}

func (f *bareFloor) awaitEvent(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("nothing for %s", patience))
	defer cancel()
	for {
		select {
		case e := <-f.watch.ResultChan():
			lock, ok := e.Object.(*v1alpha1.DistLock)
			if !ok {
				return fmt.Errorf("watching the floor's lock: %s %v", e.Type, e.Object)
			}
			if lock.ResourceVersion == f.lock.ResourceVersion {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("watching the floor's lock: %w", context.Cause(ctx))
		}
	}
}

func (f *bareFloor) write(ctx context.Context, change func(protocol.State) (protocol.State, error)) error {
	state, err := protocol.StateOf(f.lock)
	if err != nil {
		return err
	}
	if state, err = change(state); err != nil {
		return err
	}
	f.lock.Status = state.Status
	stored, err := f.client.UpdateStatus(ctx, f.lock, metav1.UpdateOptions{})
	if err == nil {
		f.lock = stored
	}
	return err
}

// rate renews n times, one after the other, and returns how often a second.
func (f *bareFloor) rate(ctx context.Context, n int) (float64, error) {
	began := time.Now()
	for range n {
		if err := f.renew(ctx, time.Now()); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), f.awaitEvent(ctx)
}
