package controllers_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// look makes the controller look at a lock, and returns the lock as it left it:
// the claim that it does it with has been answered, and is gone.
func look(t *testing.T, ns, lock string) *v1alpha1.DistLock {
	t.Helper()
	c := &v1alpha1.LockClaim{Spec: v1alpha1.LockClaimSpec{LockName: lock}}
	c.Namespace, c.GenerateName = ns, "look-"
	must(t, admin.Create(t.Context(), c))
	until(t, c, &v1alpha1.LockClaimList{}, "answered", func(c *v1alpha1.LockClaim) bool { return len(c.Status.Conditions) > 0 })
	seen := getLock(t, ns, lock)
	must(t, admin.Delete(t.Context(), c))
	return seen
}

func getLock(t *testing.T, ns, name string) *v1alpha1.DistLock {
	t.Helper()
	l := &v1alpha1.DistLock{}
	must(t, admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, l))
	return l
}

// versions are the stored versions of an object after the one given, up to the
// first that is the last wanted.
func versions[T client.Object](t *testing.T, o T, list client.ObjectList, last func(T) bool) []T {
	t.Helper()
	var all []T
	eventsSince(t, o, list, func(e watch.Event) bool {
		now, ok := e.Object.(T)
		if !ok {
			t.Fatalf("watching %s: %v", o.GetName(), e.Object)
		}
		all = append(all, now)
		return last(now)
	}, client.MatchingFields{"metadata.name": o.GetName()})
	return all
}

// lockVersions are those of a lock.
func lockVersions(t *testing.T, l *v1alpha1.DistLock, last func(*v1alpha1.DistLock) bool) []*v1alpha1.DistLock {
	t.Helper()
	return versions(t, l, &v1alpha1.DistLockList{}, last)
}

// eventsSince replays what happened in a namespace since an object was as given,
// until last says that this was the last event wanted.
func eventsSince(t *testing.T, o client.Object, list client.ObjectList, last func(watch.Event) bool, narrow ...client.ListOption) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	since := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: o.GetResourceVersion()}}
	w, err := admin.Watch(ctx, list, append(narrow, since, client.InNamespace(o.GetNamespace()))...)
	must(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if last(e) {
			return
		}
	}
	t.Fatalf("%T since version %s of %s: the last one wanted never came", list, o.GetResourceVersion(), o.GetName())
}
