package main

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pause is how long after a failure the API server is asked again.
const pause = time.Second

// errDone ends versions without an error.
var errDone = errors.New("done")

// state is one of an object, or news about the objects there are.
type state struct {
	object runtime.Object // nil with listed
	gone   bool           // object was deleted, and this is how it was last
	listed bool           // all objects that are there were shown
	count  int            // with listed: how many
}

// versions shows each object that a list finds as it is and then as it changes,
// until see fails, with errDone or an error of its own, or ctx ends, with its
// cause. A watch that ends is begun again with a list, so that an object may be
// shown twice as it is, and one that was deleted meanwhile is merely not shown
// again before the next listed.
func versions(ctx context.Context, c client.WithWatch, list client.ObjectList, see func(state) error, where ...client.ListOption) error {
	var stop error
	seeing := func(s state) error {
		stop = see(s)
		return stop
	}
	for first := true; ; first = false {
		err := listThenWatch(ctx, c, list.DeepCopyObject().(client.ObjectList), seeing, where...)
		switch {
		case errors.Is(stop, errDone):
			return nil
		case stop != nil:
			return stop
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil: // the watch ended, as they do
		case first, !passes(err):
			return err
		}
		if err != nil {
			sleep(ctx, pause)
		}
	}
}

func listThenWatch(ctx context.Context, c client.WithWatch, list client.ObjectList, see func(state) error, where ...client.ListOption) error {
	if err := c.List(ctx, list, where...); err != nil {
		return err
	}
	if err := meta.EachListItem(list, func(o runtime.Object) error { return see(state{object: o}) }); err != nil {
		return err
	}
	if err := see(state{listed: true, count: meta.LenList(list)}); err != nil {
		return err
	}
	w, err := c.Watch(ctx, list, append(where, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})...)
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		switch e.Type {
		case watch.Added, watch.Modified:
			err = see(state{object: e.Object})
		case watch.Deleted:
			err = see(state{object: e.Object, gone: true})
		case watch.Error:
			err = apierrors.FromObject(e.Object)
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				return nil // listed anew at once
			}
		case watch.Bookmark:
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// passes reports whether an error may be gone when the request is made again.
func passes(err error) bool {
	return outcomeUnknown(err) || apierrors.IsTooManyRequests(err)
}

// outcomeUnknown reports whether a write that failed so may have been stored: the
// API server did not answer, or not with a refusal.
func outcomeUnknown(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return !meta.IsNoMatchError(err)
	}
	code := status.Status().Code
	return code == 0 || code >= 500 || apierrors.IsTimeout(err)
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
