package protocol_test

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

func TestAStateNeedsAResourceVersionThatIsAnInteger(t *testing.T) {
	for version, want := range map[string]int64{"7": 7, "9007199254740993": 9007199254740993, "": -1, "x7": -1, "7.5": -1, "99999999999999999999": -1} {
		s, err := protocol.StateOf(&v1alpha1.DistLock{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}})
		if (err != nil) != (want < 0) || (err == nil && s.Version != want) {
			t.Errorf("%q: version %d, error %v", version, s.Version, err)
		}
	}
}

func TestAHoldIsFoundByItsWholeOwner(t *testing.T) {
	s := protocol.State{Status: v1alpha1.DistLockStatus{Holders: []v1alpha1.Hold{{Owner: "job/a/1", FencingToken: 5}, {Owner: "job/a/2", FencingToken: 6}}}}
	if h, ok := s.Hold("job/a/2"); !ok || h.FencingToken != 6 {
		t.Errorf("job/a/2: %v, %+v", ok, h)
	}
	for _, owner := range []string{"job/a", "job/a/", "job/a/22", ""} {
		if h, ok := s.Hold(owner); ok {
			t.Errorf("%q: %+v", owner, h)
		}
	}
}

// A caller may change the state it got: nothing of it is the state it gave,
// which may be a cache's.
func TestTheStateThatComesOutSharesNothingWithTheOneThatWentIn(t *testing.T) {
	given := func() protocol.State {
		s := newServer(100, v1alpha1.DistLockSpec{MinHoldSeconds: 5})
		for _, do := range []operation{acquire(shared("s", 1)), acquire(bound(shared("u", 1))), revoke("u"),
			queue(shared("s", 1), shared("v", 1), exclusive("a"))} {
			if err := do(s); err != nil {
				t.Fatal(err)
			}
		}
		return s.read()
	}
	for name, do := range map[string]func(protocol.State) (protocol.State, error){
		"Grant":    func(s protocol.State) (protocol.State, error) { return s.Grant(shared("v", 1), noon) },
		"Acquire":  func(s protocol.State) (protocol.State, error) { return s.Acquire(shared("v", 1), noon) },
		"HandOver": func(s protocol.State) (protocol.State, error) { return s.HandOver(noon), nil },
		"Renew":    func(s protocol.State) (protocol.State, error) { return s.Renew("s", 100, noon) },
		"Revoke":   func(s protocol.State) (protocol.State, error) { return s.Revoke("s", noon) },
		"Release":  func(s protocol.State) (protocol.State, error) { return s.Release("s", 100, time.Second, noon) },
		"Expire":   func(s protocol.State) (protocol.State, error) { return s.Expire("s", 100, time.Hour, noon) },
		"Open":     func(s protocol.State) (protocol.State, error) { return s.Open(), nil },
		"Decide, which keeps the queue": func(s protocol.State) (protocol.State, error) {
			next, _ := protocol.Decide(s, protocol.Observed{}, noon)
			return next, nil
		},
		"Decide, which ends a hold": func(s protocol.State) (protocol.State, error) {
			next, _ := protocol.Decide(s, protocol.Observed{Holds: map[string]protocol.HoldFacts{"u": {Ended: true}}}, noon)
			return next, nil
		},
		"HandOver past one that holds": func(s protocol.State) (protocol.State, error) {
			s.Status.ClosedSeconds = 1
			return s.HandOver(noon), nil
		},
	} {
		in, same := given(), given()
		out, err := do(in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		scribble(reflect.ValueOf(&out.Status).Elem())
		if !reflect.DeepEqual(in, same) {
			t.Errorf("%s: what came out is in part what went in", name)
		}
	}
}

// scribble changes everything that can be reached from v.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
		}
	case reflect.Struct:
		if t, ok := reflect.TypeAssert[*metav1.MicroTime](v.Addr()); ok {
			*t = metav1.NewMicroTime(noon.Add(time.Hour))
			return
		}
		for _, field := range v.Fields() {
			scribble(field)
		}
	case reflect.String:
		v.SetString(v.String() + " scribbled")
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1000)
	default:
		panic("a status has a " + v.Kind().String())
	}
}
