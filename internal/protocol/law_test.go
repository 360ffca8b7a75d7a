package protocol_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// The table of writes that the law allows and forbids is in test/transitions,
// where it is held against the schema too. Here the law is held against the
// simulated server's judge, on writes that nobody thought of.
func TestTheLawAndTheJudgeAgreeOnAnyWrite(t *testing.T) {
	allowed, forbidden := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var spec v1alpha1.DistLockSpec
		if rapid.Bool().Draw(t, "semaphore") {
			spec = semaphore(rapid.Int32Range(1, 4).Draw(t, "capacity"))
		}
		before := drawStatus(t, "before", 0)
		after := before
		if rapid.IntRange(0, 2).Draw(t, "unlike before") == 0 {
			after = drawStatus(t, "after", before.FencingToken)
		}
		after = *after.DeepCopy()
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			change(t, &after, before.FencingToken+1)
			j := judge{highest: before.FencingToken}
			verdict := j.stored(spec, before, after, math.MaxInt64)
			if verdict == nil {
				allowed++
			} else {
				forbidden++
			}
			if err := protocol.Legal(spec, before, after); (err == nil) != (verdict == nil) {
				t.Fatalf("Legal: %v; judge: %v\nbefore %s, token %d\nafter  %s, token %d", err, verdict, show(before), before.FencingToken, show(after), after.FencingToken)
			}
		}
	})
	if allowed == 0 || forbidden == 0 {
		t.Errorf("%d writes were allowed, %d forbidden", allowed, forbidden)
	}
}

// drawStatus is a status with up to three holds; not always one that the law
// would have let come about.
func drawStatus(t *rapid.T, name string, least int64) v1alpha1.DistLockStatus {
	st := v1alpha1.DistLockStatus{FencingToken: least + rapid.Int64Range(0, 3).Draw(t, name+"'s token")}
	for _, o := range []string{"a", "b", "c"} {
		if st.FencingToken > 0 && rapid.Bool().Draw(t, o+" holds") {
			st.Holders = append(st.Holders, drawHold(t, o, st.FencingToken))
		}
	}
	return st
}

func drawHold(t *rapid.T, owner string, most int64) v1alpha1.Hold {
	h := v1alpha1.Hold{
		Owner:        owner,
		Mode:         rapid.SampledFrom([]v1alpha1.Mode{v1alpha1.Exclusive, v1alpha1.Shared, v1alpha1.Shared}).Draw(t, "mode"),
		Permits:      rapid.Int32Range(1, 2).Draw(t, "permits"),
		FencingToken: rapid.Int64Range(max(1, most-1), most).Draw(t, "token"),
		RenewTime:    metav1.NewMicroTime(noon.Add(time.Duration(rapid.IntRange(0, 1).Draw(t, "renewed")))),
	}
	if rapid.Bool().Draw(t, "revoked") {
		h.RevokeTime = &metav1.MicroTime{Time: noon}
	}
	return h
}

// change changes one thing.
func change(t *rapid.T, st *v1alpha1.DistLockStatus, next int64) {
	what := rapid.IntRange(0, 8).Draw(t, "what")
	if len(st.Holders) == 0 && what > 1 {
		what = 0
	}
	var h *v1alpha1.Hold
	if len(st.Holders) > 0 {
		h = &st.Holders[rapid.IntRange(0, len(st.Holders)-1).Draw(t, "which")]
	}
	switch what {
	case 0:
		st.FencingToken = next
		st.Holders = append(st.Holders, drawHold(t, fmt.Sprint("new", len(st.Holders)), next))
	case 1:
		st.FencingToken--
	case 2:
		h.Mode = v1alpha1.Exclusive
	case 3:
		h.Permits++
	case 4:
		h.FencingToken++
	case 5:
		h.FencingToken, st.FencingToken = next, next
	case 6:
		h.RevokeTime = nil
	case 7:
		h.RenewTime = metav1.NewMicroTime(h.RenewTime.Add(time.Second))
	case 8:
		*h = drawHold(t, h.Owner, h.FencingToken)
	}
}

func TestTheLawKnowsItsBounds(t *testing.T) {
	full := func(n int) v1alpha1.DistLockStatus {
		st := v1alpha1.DistLockStatus{FencingToken: 7}
		for i := range n {
			st.Holders = append(st.Holders, v1alpha1.Hold{Owner: fmt.Sprint(i), Mode: v1alpha1.Shared, Permits: 1, FencingToken: 7})
		}
		return st
	}
	none := v1alpha1.DistLockStatus{}
	for _, c := range []struct {
		after v1alpha1.DistLockStatus
		want  error
	}{
		{full(256), nil},
		{full(257), protocol.ErrTooManyHolders},
		{v1alpha1.DistLockStatus{FencingToken: 1<<53 - 1}, nil},
		{v1alpha1.DistLockStatus{FencingToken: 1 << 53}, protocol.ErrTokenOutOfRange},
	} {
		if err := protocol.Legal(v1alpha1.DistLockSpec{}, none, c.after); !errors.Is(err, c.want) {
			t.Errorf("%d holders, token %d: %v, want %v", len(c.after.Holders), c.after.FencingToken, err, c.want)
		}
	}
}
