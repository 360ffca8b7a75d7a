package protocol_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// noon is the wall clock of those whose clock does not matter.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const lease = 15 // seconds

// step is one operation on the lock as it is stored then, the error it must
// return (nil: none), and how the lock must look after it.
type step struct {
	do   operation
	err  error
	want string
}

// operation reads the lock, decides, and stores what it decided.
type operation func(s *server) error

// play runs steps one after the other. The first write of a new server's lock
// replaces version 100, and every write counts one up.
func play(t *testing.T, spec v1alpha1.DistLockSpec, steps ...step) *server {
	t.Helper()
	s := newServer(100, spec)
	for i, st := range steps {
		if err := st.do(s); !errors.Is(err, st.err) {
			t.Fatalf("step %d: error %v, want %v", i+1, err, st.err)
		}
		if got := show(s.lock.Status); got != st.want {
			t.Fatalf("step %d:\n got %s\nwant %s", i+1, got, st.want)
		}
	}
	return s
}

// transition is an operation of one transition. Whatever it does, it must not
// change the state it was given, and beside an error must return that state.
func transition(f func(protocol.State) (protocol.State, error)) operation {
	return func(s *server) error {
		given, same := s.read(), s.read()
		next, err := f(given)
		if !reflect.DeepEqual(given, same) {
			return fmt.Errorf("the state that came in was changed:\n is  %s\n was %s", show(given.Status), show(same.Status))
		}
		if err != nil {
			if !reflect.DeepEqual(next, same) {
				return fmt.Errorf("beside the error %w came another state: %s", err, show(next.Status))
			}
			return err
		}
		if err := protocol.Legal(given.Spec, given.Status, next.Status); err != nil {
			return fmt.Errorf("%s is no legal write after %s: %w", show(next.Status), show(given.Status), err)
		}
		return s.update(next)
	}
}

func acquire(w v1alpha1.Waiter) operation {
	return transition(func(s protocol.State) (protocol.State, error) { return s.Acquire(w, noon) })
}

func renew(owner string, token int64, now time.Time) operation {
	return transition(func(s protocol.State) (protocol.State, error) { return s.Renew(owner, token, now) })
}

func revoke(owner string) operation {
	return transition(func(s protocol.State) (protocol.State, error) { return s.Revoke(owner, noon) })
}

func release(owner string, token int64, heldFor time.Duration) operation {
	return transition(func(s protocol.State) (protocol.State, error) { return s.Release(owner, token, heldFor, noon) })
}

func expire(owner string, token int64, heldFor time.Duration) operation {
	return transition(func(s protocol.State) (protocol.State, error) { return s.Expire(owner, token, heldFor, noon) })
}

func open() operation {
	return transition(func(s protocol.State) (protocol.State, error) { return s.Open(), nil })
}

func handOver() operation {
	return transition(func(s protocol.State) (protocol.State, error) { return s.HandOver(noon), nil })
}

func decide(o protocol.Observed) operation {
	return transition(func(s protocol.State) (protocol.State, error) {
		next, _ := protocol.Decide(s, o, noon)
		return next, nil
	})
}

// queue stores a queue as a controller did earlier.
func queue(ws ...v1alpha1.Waiter) operation {
	return func(s *server) error {
		next := s.read()
		next.Status.Queue, next.Status.Waiting = ws, int32(len(ws))
		return s.update(next)
	}
}

func setSpec(change func(*v1alpha1.DistLockSpec)) operation {
	return func(s *server) error {
		spec := *s.lock.Spec.DeepCopy()
		change(&spec)
		s.setSpec(spec)
		return nil
	}
}

// recreate deletes the lock and makes it anew.
func recreate() operation {
	return func(s *server) error {
		spec := s.lock.Spec
		s.delete()
		s.create(spec)
		return nil
	}
}

func exclusive(owner string) v1alpha1.Waiter {
	return v1alpha1.Waiter{Owner: owner, Mode: v1alpha1.Exclusive, Permits: 1, LeaseDurationSeconds: new(int32(lease))}
}

func shared(owner string, permits int32) v1alpha1.Waiter {
	return v1alpha1.Waiter{Owner: owner, Mode: v1alpha1.Shared, Permits: permits, LeaseDurationSeconds: new(int32(lease))}
}

// bound is a request whose hold ends with its object.
func bound(w v1alpha1.Waiter) v1alpha1.Waiter {
	w.LeaseDurationSeconds = nil
	return w
}

func semaphore(capacity int32) v1alpha1.DistLockSpec {
	return v1alpha1.DistLockSpec{Capacity: &capacity}
}

// show writes a status as a line: holds with their tokens (= Exclusive,
// ~ Shared, x its permits, ! revoked), < the queue, and how long it is closed.
func show(st v1alpha1.DistLockStatus) string {
	var parts []string
	for _, h := range st.Holders {
		sign, revoked := "=", ""
		if h.Mode == v1alpha1.Shared {
			sign = "~"
		}
		if h.RevokeTime != nil {
			revoked = "!"
		}
		parts = append(parts, h.Owner+sign+fmt.Sprint(h.FencingToken)+times(h.Permits)+revoked)
	}
	if len(parts) == 0 {
		parts = append(parts, "free")
	}
	if st.ClosedSeconds > 0 {
		parts = append(parts, fmt.Sprintf("closed %ds", st.ClosedSeconds))
	}
	if len(st.Queue) > 0 {
		parts = append(parts, "<")
	}
	for _, w := range st.Queue {
		parts = append(parts, w.Owner+times(w.Permits))
	}
	return strings.Join(parts, " ")
}

func times(permits int32) string {
	if permits == 1 {
		return ""
	}
	return fmt.Sprintf("x%d", permits)
}
