package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

var errConflict = errors.New("conflict")

// server is what the law needs of the API server: one lock's name,
// resourceVersions that grow with every write of anything, updates guarded by
// them, and values that went through JSON. Every version that it stores is
// judged.
type server struct {
	version int64
	lock    *v1alpha1.DistLock // nil: there is none
	judge   judge
}

// newServer is a server with a lock that was created in the write of version.
func newServer(version int64, spec v1alpha1.DistLockSpec) *server {
	s := &server{version: version - 1}
	s.create(spec)
	return s
}

func (s *server) create(spec v1alpha1.DistLockSpec) {
	s.version++
	s.lock = stored(spec, v1alpha1.DistLockStatus{}, s.version)
}

func (s *server) delete() {
	s.version++
	s.lock = nil
}

// writeElsewhere is a write of another object.
func (s *server) writeElsewhere() { s.version++ }

// setSpec is a user's write; the status stays.
func (s *server) setSpec(spec v1alpha1.DistLockSpec) {
	s.version++
	s.lock = stored(spec, s.lock.Status, s.version)
}

// read is the lock as a client gets it: nothing in it is the server's own.
func (s *server) read() protocol.State {
	state, err := protocol.StateOf(s.lock.DeepCopy())
	if err != nil {
		panic(err)
	}
	return state
}

// update stores a status guarded by the version it was decided from. One that
// changes nothing keeps its resourceVersion, as in the real one.
func (s *server) update(next protocol.State) error {
	if s.lock == nil || strconv.FormatInt(next.Version, 10) != s.lock.ResourceVersion {
		return errConflict
	}
	before, after := s.lock, stored(s.lock.Spec, next.Status, s.version+1)
	if reflect.DeepEqual(after.Status, before.Status) {
		return nil
	}
	s.version++
	s.lock = after
	if err := s.judge.stored(after.Spec, before.Status, after.Status, s.version); err != nil {
		return fmt.Errorf("stored in version %d: %w\nbefore %s\nafter  %s", s.version, err, show(before.Status), show(after.Status))
	}
	return nil
}

// stored is the lock as it comes back from a write.
func stored(spec v1alpha1.DistLockSpec, status v1alpha1.DistLockStatus, version int64) *v1alpha1.DistLock {
	raw, err := json.Marshal(v1alpha1.DistLock{Spec: spec, Status: status})
	if err != nil {
		panic(err)
	}
	l := &v1alpha1.DistLock{}
	if err := json.Unmarshal(raw, l); err != nil {
		panic(err)
	}
	l.ObjectMeta = metav1.ObjectMeta{Namespace: "reports", Name: "nightly", ResourceVersion: strconv.FormatInt(version, 10)}
	return l
}

// judge says L1 and L2 in its own words, without the code under test. It judges
// all versions stored under one name, also those of a lock that was deleted and
// made anew.
type judge struct {
	highest int64 // token ever granted
	raised  bool  // by hand, so that tokens may exceed versions
}

func (j *judge) stored(spec v1alpha1.DistLockSpec, before, after v1alpha1.DistLockStatus, version int64) error {
	was := map[string]v1alpha1.Hold{}
	permitsBefore := 0
	for _, h := range before.Holders {
		was[h.Owner] = h
		permitsBefore += int(h.Permits)
	}
	owners := map[string]bool{}
	exclusive, permits, granted := 0, 0, 0
	for _, h := range after.Holders {
		owners[h.Owner] = true
		permits += int(h.Permits)
		if h.Mode == v1alpha1.Exclusive {
			exclusive++
		}
		if old, kept := was[h.Owner]; kept && old.FencingToken == h.FencingToken {
			if old.Mode != h.Mode || old.Permits != h.Permits {
				return fmt.Errorf("L1: the hold of %s changed", h.Owner)
			}
			if old.RevokeTime != nil && (h.RevokeTime == nil || !h.RenewTime.Equal(&old.RenewTime)) {
				return fmt.Errorf("the revoked hold of %s was renewed", h.Owner)
			}
			continue
		}
		granted++
		if h.FencingToken <= j.highest {
			return fmt.Errorf("L2: token %d was granted after %d", h.FencingToken, j.highest)
		}
		if h.FencingToken != after.FencingToken {
			return fmt.Errorf("L2: token %d is granted and %d recorded", h.FencingToken, after.FencingToken)
		}
		if h.FencingToken > version && !j.raised {
			return fmt.Errorf("L2: token %d exceeds the version that stores it", h.FencingToken)
		}
	}
	if granted > 0 {
		j.highest = after.FencingToken
	}
	switch {
	case after.FencingToken < before.FencingToken:
		return fmt.Errorf("L2: the token went from %d to %d", before.FencingToken, after.FencingToken)
	case len(owners) != len(after.Holders):
		return errors.New("L1: an owner holds twice")
	case len(after.Holders) > 256:
		return fmt.Errorf("L1: %d holds", len(after.Holders))
	case exclusive > 0 && len(after.Holders) > 1:
		return errors.New("L1: an Exclusive hold is not alone")
	case exclusive == 0 && granted > 0 && spec.Capacity != nil && permits > int(*spec.Capacity):
		return fmt.Errorf("L1: %d permits of %d, with a grant", permits, *spec.Capacity)
	}
	return nil
}
