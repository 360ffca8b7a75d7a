package transitions

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// object is an object as a user would write it.
func object(kind string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": runtime.DeepCopyJSONValue(spec)}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetNamespace("default")
	u.SetName(fmt.Sprintf("%s-%d", strings.ToLower(kind), locks.Add(1)))
	return u
}

type spec = map[string]any

func TestABadSpecIsRefusedWithAMessageThatNamesTheField(t *testing.T) {
	long := strings.Repeat("x", 254)
	for _, c := range []struct {
		kind string
		spec spec
		want string // in the message; empty: it is accepted
	}{
		{"DistLock", spec{}, ""},
		{"DistLock", spec{"leaseDurationSeconds": int64(2)}, "spec.leaseDurationSeconds: Invalid value: 2"},
		{"DistLock", spec{"leaseDurationSeconds": int64(3)}, ""},
		{"DistLock", spec{"leaseDurationSeconds": int64(3600)}, ""},
		{"DistLock", spec{"leaseDurationSeconds": int64(3601)}, "spec.leaseDurationSeconds: Invalid value: 3601"},
		{"DistLock", spec{"leaseDurationSeconds": "15s"}, "spec.leaseDurationSeconds: Invalid value"},
		{"DistLock", spec{"capacity": int64(0)}, "spec.capacity: Invalid value: 0"},
		{"DistLock", spec{"capacity": int64(1)}, ""},
		{"DistLock", spec{"capacity": int64(1000000)}, ""},
		{"DistLock", spec{"capacity": int64(1000001)}, "spec.capacity: Invalid value: 1000001"},
		{"DistLock", spec{"minHoldSeconds": int64(-1)}, "spec.minHoldSeconds: Invalid value: -1"},
		{"DistLock", spec{"minHoldSeconds": int64(3600)}, ""},
		{"DistLock", spec{"minHoldSeconds": int64(3601)}, "spec.minHoldSeconds: Invalid value: 3601"},
		{"DistLock", spec{"maxHoldSeconds": int64(0)}, "spec.maxHoldSeconds: Invalid value: 0"},
		{"DistLock", spec{"maxHoldSeconds": int64(2592000)}, ""},
		{"DistLock", spec{"maxHoldSeconds": int64(2592001)}, "spec.maxHoldSeconds: Invalid value: 2592001"},
		{"DistLock", spec{"lockDelaySeconds": int64(-1)}, "spec.lockDelaySeconds: Invalid value: -1"},
		{"DistLock", spec{"lockDelaySeconds": int64(3600)}, ""},
		{"DistLock", spec{"lockDelaySeconds": int64(3601)}, "spec.lockDelaySeconds: Invalid value: 3601"},

		{"LockClaim", spec{}, "spec.lockName: Required value"},
		{"LockClaim", spec{"lockName": "l"}, ""},
		{"LockClaim", spec{"lockName": ""}, "spec.lockName: Invalid value"},
		{"LockClaim", spec{"lockName": long}, "spec.lockName: Too long"},
		{"LockClaim", spec{"lockName": "l", "mode": "Shared", "permits": int64(1000000)}, ""},
		{"LockClaim", spec{"lockName": "l", "mode": "shared"}, `spec.mode: Unsupported value: "shared": supported values: "Exclusive", "Shared"`},
		{"LockClaim", spec{"lockName": "l", "permits": int64(2)}, ""},
		{"LockClaim", spec{"lockName": "l", "permits": int64(0)}, "spec.permits: Invalid value: 0"},
		{"LockClaim", spec{"lockName": "l", "permits": int64(1000001)}, "spec.permits: Invalid value: 1000001"},
		{"LockClaim", spec{"lockName": "l", "mode": "Exclusive", "permits": int64(1)}, ""},
		{"LockClaim", spec{"lockName": "l", "mode": "Exclusive", "permits": int64(2)}, "spec.permits goes with mode Shared"},
		{"LockClaim", spec{"lockName": "l", "leaseDurationSeconds": int64(2)}, "spec.leaseDurationSeconds: Invalid value: 2"},
		{"LockClaim", spec{"lockName": "l", "leaseDurationSeconds": int64(3600)}, ""},
		{"LockClaim", spec{"lockName": "l", "leaseDurationSeconds": int64(3601)}, "spec.leaseDurationSeconds: Invalid value: 3601"},
	} {
		err := admin.Create(t.Context(), object(c.kind, c.spec), client.DryRunAll)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s %v: %v", c.kind, c.spec, err)
		case c.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s %v: error %v, want %q in it", c.kind, c.spec, err, c.want)
		}
	}
}

func TestALockWithoutASpecHasTheDefaultLease(t *testing.T) {
	u := object("DistLock", nil)
	delete(u.Object, "spec")
	if err := admin.Create(t.Context(), u, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if got, _, err := unstructured.NestedInt64(u.Object, "spec", "leaseDurationSeconds"); err != nil || got != v1alpha1.DefaultLeaseSeconds {
		t.Errorf("%d seconds, error %v", got, err)
	}
}

func TestTheSpecOfALockClaimIsImmutable(t *testing.T) {
	claim := object("LockClaim", spec{"lockName": "l", "mode": "Shared"})
	if err := admin.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	for _, patch := range []string{
		`{"spec":{"lockName":"other"}}`, `{"spec":{"mode":"Exclusive"}}`, `{"spec":{"mode":null}}`,
		`{"spec":{"permits":1}}`, `{"spec":{"leaseDurationSeconds":15}}`,
	} {
		err := admin.Patch(t.Context(), claim.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec is immutable: delete the LockClaim and create another") {
			t.Errorf("%s: error %v", patch, err)
		}
	}
	if err := admin.Patch(t.Context(), claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))); err != nil {
		t.Errorf("a label: %v", err)
	}
}

func heldLock(t *testing.T) *v1alpha1.DistLock {
	l, err := newLock(t.Context(), v1alpha1.DistLockSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if rules, err := write(t.Context(), l, status(7, x("a", 7))); err != nil || rules != nil {
		t.Fatal(err, rules)
	}
	return l
}

// A rule under status would not run when all of it goes.
func TestTheStatusOfAHeldLockCannotBeTakenAway(t *testing.T) {
	l := heldLock(t)
	for _, patch := range []string{
		`[{"op":"remove","path":"/status"}]`,
		`[{"op":"replace","path":"/status","value":{}}]`,
		`[{"op":"remove","path":"/status/fencingToken"}]`,
	} {
		err := admin.Status().Patch(t.Context(), l.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(patch)))
		if rules, other := broken(err); other != nil || len(rules) != 1 || rules[0] != protocol.ErrTokenDecreased.Error() {
			t.Errorf("%s breaks %q, error %v", patch, rules, other)
		}
	}
	bare := &v1alpha1.DistLock{ObjectMeta: l.ObjectMeta, Spec: l.Spec}
	if rules, err := broken(admin.Status().Update(t.Context(), bare)); err != nil || len(rules) != 1 || rules[0] != protocol.ErrTokenDecreased.Error() {
		t.Errorf("an update without a status breaks %q, error %v", rules, err)
	}
}

// Fault 28, as far as the schema goes: manifests have no status, and whatever
// they have in its place is not looked at.
func TestWritingTheSpecDoesNotTouchWhoHoldsTheLock(t *testing.T) {
	l := heldLock(t)
	bare := &v1alpha1.DistLock{ObjectMeta: l.ObjectMeta, Spec: v1alpha1.DistLockSpec{Capacity: new(int32(4)), LeaseDurationSeconds: 30}}
	bare.Status = status(99, x("thief", 99))
	if err := admin.Update(t.Context(), bare); err != nil {
		t.Fatal(err)
	}
	var got v1alpha1.DistLock
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(l), &got); err != nil {
		t.Fatal(err)
	}
	if *got.Spec.Capacity != 4 || got.Status.FencingToken != 7 || len(got.Status.Holders) != 1 || got.Status.Holders[0].Owner != "a" {
		t.Errorf("%+v", got.Status)
	}
}

func TestALockIsCreatedWithoutAnyHold(t *testing.T) {
	l := &v1alpha1.DistLock{Status: status(99, x("thief", 99))}
	l.Namespace, l.Name = "default", fmt.Sprintf("thief-%d", locks.Add(1))
	if err := admin.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if l.Status.FencingToken != 0 || len(l.Status.Holders) != 0 {
		t.Errorf("%+v", l.Status)
	}
}

func TestAStatusBeyondItsBoundsIsRefused(t *testing.T) {
	l := heldLock(t)
	with := func(change func(*v1alpha1.DistLockStatus)) v1alpha1.DistLockStatus {
		st := *l.Status.DeepCopy()
		change(&st)
		return st
	}
	waiter := v1alpha1.Waiter{Owner: "w", Mode: v1alpha1.Exclusive, Permits: 1}
	for name, c := range map[string]struct {
		status v1alpha1.DistLockStatus
		want   string
	}{
		"an owner that holds twice":    {status(8, s("a", 8), s("a", 8)), "status.holders[1]: Duplicate value"},
		"a waiter that waits twice":    {with(func(st *v1alpha1.DistLockStatus) { st.Queue = []v1alpha1.Waiter{waiter, waiter} }), "status.queue[1]: Duplicate value"},
		"33 waiters":                   {with(func(st *v1alpha1.DistLockStatus) { st.Queue = make([]v1alpha1.Waiter, 33) }), "status.queue: Too many: 33: must have at most 32 items"},
		"a waiter without an owner":    {with(func(st *v1alpha1.DistLockStatus) { st.Queue = []v1alpha1.Waiter{{Mode: v1alpha1.Shared, Permits: 1}} }), "status.queue[0].owner: Invalid value"},
		"a hold without a token":       {status(8, x("a", 0)), "status.holders[0].fencingToken: Invalid value: 0"},
		"a hold without a mode":        {with(func(st *v1alpha1.DistLockStatus) { st.Holders[0].Mode = "" }), "status.holders[0].mode: Unsupported value"},
		"a hold of no permits":         {status(8, s("a", 8, permits(0))), "status.holders[0].permits: Invalid value: 0"},
		"a hold of negative permits":   {status(8, s("a", 8), s("b", 8, permits(-1))), "status.holders[1].permits: Invalid value: -1"},
		"a lease of 2 s":               {with(func(st *v1alpha1.DistLockStatus) { st.Holders[0].LeaseDurationSeconds = new(int32(2)) }), "status.holders[0].leaseDurationSeconds: Invalid value: 2"},
		"an owner of 321 characters":   {status(8, x(strings.Repeat("x", 321), 8)), "status.holders[0].owner: Too long"},
		"closed for more than an hour": {with(func(st *v1alpha1.DistLockStatus) { st.ClosedSeconds = 3601 }), "status.closedSeconds: Invalid value: 3601"},
		"fewer than none wait":         {with(func(st *v1alpha1.DistLockStatus) { st.Waiting = -1 }), "status.waiting: Invalid value: -1"},
	} {
		next := l.DeepCopy()
		next.Status = c.status
		if err := admin.Status().Update(t.Context(), next, client.DryRunAll); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, c.want)
		}
	}
}
