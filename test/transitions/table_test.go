package transitions

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// transition is a write of a lock's status that the law judges: in Go
// (protocol.Legal), and in the API server by the schema. History is what was
// stored before, one status after the other, all legal; the first replaces an
// empty one. A rule is broken where want is not nil, and that one alone.
type transition struct {
	name     string
	capacity int32   // of the lock while history is stored; 0: it has none
	later    *int32  // capacity when the write is judged, where it is another one
	history  history // what was stored
	write    v1alpha1.DistLockStatus
	want     error
}

type history []v1alpha1.DistLockStatus

var table = slices.Concat([]transition{
	{name: "nothing happens", write: status(0)},
	{name: "nothing changes", history: history{status(7, x("a", 7))}, write: status(7, x("a", 7))},
}, fencing, exclusion, capacities, revocation, limits)

// L2: every grant has a new, greater token.
var fencing = []transition{
	{name: "the first grant", write: status(7, x("a", 7))},
	{name: "the first grant of many", write: status(7, s("a", 7), s("b", 7), s("c", 7))},
	{name: "a grant with the next token", history: history{status(7)}, write: status(8, x("a", 8))},
	{name: "a grant with a later token", history: history{status(7)}, write: status(9000, x("a", 9000))},
	{name: "a grant beside a hold", history: history{status(7, s("a", 7))}, write: status(8, s("a", 7), s("b", 8))},
	{name: "two grants in one write", history: history{status(7, s("a", 7))}, write: status(8, s("b", 8), s("a", 7), s("c", 8))},
	{name: "a release", history: history{status(7, x("a", 7))}, write: status(7)},
	{name: "a release of one of two", history: history{status(7, s("a", 7), s("b", 7))}, write: status(7, s("b", 7))},
	{name: "a release and a grant", history: history{status(7, x("a", 7))}, write: status(8, x("b", 8))},
	{name: "a release and a grant to the same owner", history: history{status(7, x("a", 7))}, write: status(8, x("a", 8))},
	{name: "a grant in another mode to the same owner", history: history{status(7, x("a", 7))}, write: status(8, s("a", 8, permits(3)))},
	{name: "a renewal", history: history{status(7, x("a", 7))}, write: status(7, x("a", 7, renewed(1)))},
	{name: "a renewal back in time", history: history{status(7, x("a", 7))}, write: status(7, x("a", 7, renewed(-60)))},
	{name: "the holds are listed in another order", history: history{status(7, s("a", 7), s("b", 7))}, write: status(7, s("b", 7), s("a", 7))},
	{name: "the mark is raised", history: history{status(7, x("a", 7))}, write: status(1000, x("a", 7))},
	{name: "a grant after the mark was raised", history: history{status(7), status(1000)}, write: status(1001, x("a", 1001))},

	{name: "the token decreases", history: history{status(7)}, write: status(6), want: protocol.ErrTokenDecreased},
	{name: "the token is left out", history: history{status(7)}, write: status(0), want: protocol.ErrTokenDecreased},
	{name: "the token decreases under a hold", history: history{status(7, x("a", 7))}, write: status(6, x("a", 7)), want: protocol.ErrTokenDecreased},
	{name: "the token decreases to that of the hold", history: history{status(7, x("a", 7)), status(8, x("a", 7))}, write: status(7, x("a", 7)), want: protocol.ErrTokenDecreased},

	{name: "a grant with the last token", history: history{status(7)}, write: status(7, x("a", 7)), want: protocol.ErrStaleToken},
	{name: "a grant with an old token", history: history{status(7)}, write: status(7, x("a", 5)), want: protocol.ErrStaleToken},
	{name: "a grant with an old token, the mark raised", history: history{status(7)}, write: status(8, x("a", 7)), want: protocol.ErrStaleToken},
	{name: "a grant with a token that is not recorded", history: history{status(7)}, write: status(7, x("a", 8)), want: protocol.ErrStaleToken},
	{name: "a grant with a token above the recorded one", history: history{status(7)}, write: status(8, x("a", 9)), want: protocol.ErrStaleToken},
	{name: "a grant with a token below the recorded one", history: history{status(7)}, write: status(9, x("a", 8)), want: protocol.ErrStaleToken},
	{name: "a first grant that records no token", write: status(0, x("a", 7)), want: protocol.ErrStaleToken},
	{name: "a grant with the token of a hold beside it", history: history{status(7, s("a", 7))}, write: status(7, s("a", 7), s("b", 7)), want: protocol.ErrStaleToken},
	{name: "two grants with a token each", history: history{status(7)}, write: status(9, s("a", 8), s("b", 9)), want: protocol.ErrStaleToken},
	{name: "a late write brings back a hold that was released", history: history{status(7, x("a", 7)), status(7)}, write: status(7, x("a", 7)), want: protocol.ErrStaleToken},
	{name: "a hold goes to another owner", history: history{status(7, x("a", 7))}, write: status(7, x("b", 7)), want: protocol.ErrStaleToken},
	{name: "a hold goes to another owner whose name begins alike", history: history{status(7, x("a", 7))}, write: status(7, x("aa", 7)), want: protocol.ErrStaleToken},
	{name: "two holds swap their tokens", history: history{status(7, s("a", 7)), status(8, s("a", 7), s("b", 8))}, write: status(8, s("a", 8), s("b", 7)), want: protocol.ErrStaleToken},
	{name: "owner and token run together as those of a hold", history: history{status(7, s("1a", 7)), status(71, s("1a", 7))}, write: status(71, s("1a", 7), s("a", 71)), want: protocol.ErrStaleToken},
	{name: "a hold gets a lower token", history: history{status(7, x("a", 7))}, write: status(7, x("a", 6)), want: protocol.ErrStaleToken},
	{name: "a hold gets the raised mark", history: history{status(7, x("a", 7)), status(9, x("a", 7))}, write: status(9, x("a", 9)), want: protocol.ErrStaleToken},
	{name: "a hold gets a token below the mark", history: history{status(7, x("a", 7)), status(9, x("a", 7))}, write: status(9, x("a", 8)), want: protocol.ErrStaleToken},
}

// L1: one Exclusive hold alone, or Shared ones.
var exclusion = []transition{
	{name: "an Exclusive hold of many permits", capacity: 2, write: status(7, x("a", 7, permits(9)))},

	{name: "two Exclusive holds are granted", write: status(7, x("a", 7), x("b", 7)), want: protocol.ErrNotAlone},
	{name: "an Exclusive hold is granted beside an Exclusive one", history: history{status(7, x("a", 7))}, write: status(8, x("a", 7), x("b", 8)), want: protocol.ErrNotAlone},
	{name: "an Exclusive hold is granted beside a Shared one", history: history{status(7, s("a", 7))}, write: status(8, s("a", 7), x("b", 8)), want: protocol.ErrNotAlone},
	{name: "a Shared hold is granted beside an Exclusive one", history: history{status(7, x("a", 7))}, write: status(8, x("a", 7), s("b", 8)), want: protocol.ErrNotAlone},
	{name: "an Exclusive hold comes first of two", write: status(7, x("a", 7), s("b", 7)), want: protocol.ErrNotAlone},
	{name: "a Shared hold comes first of two", write: status(7, s("a", 7), x("b", 7)), want: protocol.ErrNotAlone},

	{name: "a Shared hold becomes Exclusive", history: history{status(7, s("a", 7))}, write: status(7, x("a", 7)), want: protocol.ErrHoldChanged},
	{name: "an Exclusive hold becomes Shared", history: history{status(7, x("a", 7))}, write: status(7, s("a", 7)), want: protocol.ErrHoldChanged},
	{name: "a hold takes more permits", capacity: 9, history: history{status(7, s("a", 7))}, write: status(7, s("a", 7, permits(2))), want: protocol.ErrHoldChanged},
	{name: "a hold gives back permits", capacity: 9, history: history{status(7, s("a", 7, permits(2)))}, write: status(7, s("a", 7)), want: protocol.ErrHoldChanged},
	{name: "a hold takes more permits while another is granted", history: history{status(7, s("a", 7))}, write: status(8, s("a", 7, permits(2)), s("b", 8)), want: protocol.ErrHoldChanged},
}

// L1: the permits of Shared holds add up to the capacity, when one is granted.
var capacities = []transition{
	{name: "permits up to the capacity", capacity: 5, write: status(7, s("a", 7, permits(5)))},
	{name: "permits that add up to the capacity", capacity: 5, history: history{status(7, s("a", 7, permits(3)))}, write: status(8, s("a", 7, permits(3)), s("b", 8, permits(2)))},
	{name: "any permits without a capacity", write: status(7, s("a", 7, permits(1000000)), s("b", 7, permits(1000000)))},
	{name: "a renewal over a lowered capacity", capacity: 5, later: new(int32(2)), history: history{status(7, s("a", 7, permits(5)))}, write: status(7, s("a", 7, permits(5), renewed(1)))},
	{name: "a release over a lowered capacity", capacity: 5, later: new(int32(1)), history: history{status(7, s("a", 7, permits(3)), s("b", 7, permits(2)))}, write: status(7, s("b", 7, permits(2)))},
	{name: "a revocation over a lowered capacity", capacity: 5, later: new(int32(1)), history: history{status(7, s("a", 7, permits(3)))}, write: status(7, s("a", 7, permits(3), revoked))},
	{name: "a grant within a lowered capacity", capacity: 5, later: new(int32(3)), history: history{status(7, s("a", 7, permits(2)))}, write: status(8, s("a", 7, permits(2)), s("b", 8))},
	{name: "a grant after a release over a lowered capacity", capacity: 5, later: new(int32(2)), history: history{status(7, s("a", 7, permits(5)))}, write: status(8, s("b", 8, permits(2)))},
	{name: "a grant within a capacity that is new", later: new(int32(2)), history: history{status(7, s("a", 7))}, write: status(8, s("a", 7), s("b", 8))},
	{name: "the mark is raised over a lowered capacity", capacity: 5, later: new(int32(2)), history: history{status(7, s("a", 7, permits(5)))}, write: status(9, s("a", 7, permits(5)))},

	{name: "permits over the capacity", capacity: 5, write: status(7, s("a", 7, permits(6))), want: protocol.ErrOverCapacity},
	{name: "permits that add up to more than the capacity", capacity: 5, history: history{status(7, s("a", 7, permits(3)))}, write: status(8, s("a", 7, permits(3)), s("b", 8, permits(3))), want: protocol.ErrOverCapacity},
	{name: "a grant over a lowered capacity", capacity: 5, later: new(int32(2)), history: history{status(7, s("a", 7, permits(2)))}, write: status(8, s("a", 7, permits(2)), s("b", 8)), want: protocol.ErrOverCapacity},
	{name: "a grant while a lowered capacity drains", capacity: 5, later: new(int32(2)), history: history{status(7, s("a", 7, permits(2)), s("b", 7, permits(2)))}, write: status(8, s("b", 7, permits(2)), s("c", 8)), want: protocol.ErrOverCapacity},
	{name: "a grant over a capacity that is new", later: new(int32(2)), history: history{status(7, s("a", 7, permits(2)))}, write: status(8, s("a", 7, permits(2)), s("b", 8)), want: protocol.ErrOverCapacity},
	{name: "a hold over a lowered capacity is granted anew", capacity: 5, later: new(int32(2)), history: history{status(7, s("a", 7, permits(5)))}, write: status(8, s("a", 8, permits(5))), want: protocol.ErrOverCapacity},
}

// A hold that was revoked is not renewed.
var revocation = []transition{
	{name: "a revocation", history: history{status(7, x("a", 7))}, write: status(7, x("a", 7, revoked))},
	{name: "a revocation with a renewal", history: history{status(7, x("a", 7))}, write: status(7, x("a", 7, renewed(1), revoked))},
	{name: "a grant that is revoked at once", write: status(7, x("a", 7, revoked))},
	{name: "a revoked hold stays", history: history{status(7, x("a", 7, revoked))}, write: status(8, x("a", 7, revoked))},
	{name: "a revoked hold ends", history: history{status(7, x("a", 7, revoked))}, write: status(7)},
	{name: "a revoked hold ends and its owner is granted another", history: history{status(7, x("a", 7, revoked))}, write: status(8, x("a", 8))},
	{name: "another is renewed beside a revoked hold", history: history{status(7, s("a", 7, revoked), s("b", 7))}, write: status(7, s("a", 7, revoked), s("b", 7, renewed(1)))},
	{name: "a grant beside a revoked hold", history: history{status(7, s("a", 7, revoked))}, write: status(8, s("b", 8), s("a", 7, revoked))},

	{name: "a revoked hold is renewed", history: history{status(7, x("a", 7, revoked))}, write: status(7, x("a", 7, revoked, renewed(1))), want: protocol.ErrRevokedRenewed},
	{name: "a revoked hold is renewed by a microsecond", history: history{status(7, x("a", 7, revoked))}, write: status(7, x("a", 7, revoked, renewedBy(time.Microsecond))), want: protocol.ErrRevokedRenewed},
	{name: "a revoked hold is renewed back in time", history: history{status(7, x("a", 7, revoked))}, write: status(7, x("a", 7, revoked, renewed(-1))), want: protocol.ErrRevokedRenewed},
	{name: "a revocation is taken back", history: history{status(7, x("a", 7, revoked))}, write: status(7, x("a", 7)), want: protocol.ErrRevokedRenewed},
	{name: "a revocation is taken back by a renewal", history: history{status(7, x("a", 7, revoked))}, write: status(7, x("a", 7, renewed(1))), want: protocol.ErrRevokedRenewed},
	{name: "a revoked hold is renewed among others", history: history{status(7, s("a", 7), s("b", 7, revoked), s("c", 7))}, write: status(7, s("c", 7), s("b", 7, revoked, renewed(1)), s("a", 7)), want: protocol.ErrRevokedRenewed},
}

// What the schema bounds.
var limits = []transition{
	{name: "the last token", write: status(v1alpha1.MaxToken, x("a", v1alpha1.MaxToken))},
	{name: "256 holds are granted", write: status(7, many(0, 256, 7)...)},
	{name: "256 holds are renewed", history: history{status(7, many(0, 256, 7)...)}, write: status(7, many(0, 256, 7, renewed(1))...)},
	{name: "256 holds give way to 256 others", history: history{status(7, many(0, 256, 7)...)}, write: status(8, many(256, 512, 8)...)},

	{name: "a token of 2^53", write: status(v1alpha1.MaxToken + 1), want: protocol.ErrTokenOutOfRange},
	{name: "257 holds", history: history{status(7, many(0, 256, 7)...)}, write: status(8, append(many(0, 256, 7), s("last", 8))...), want: protocol.ErrTooManyHolders},
}

// noon is when all holds here were granted.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func status(token int64, holders ...v1alpha1.Hold) v1alpha1.DistLockStatus {
	return v1alpha1.DistLockStatus{FencingToken: token, Holders: holders}
}

// x is an Exclusive hold.
func x(owner string, token int64, options ...func(*v1alpha1.Hold)) v1alpha1.Hold {
	h := v1alpha1.Hold{
		Owner: owner, Mode: v1alpha1.Exclusive, Permits: 1, FencingToken: token,
		AcquireTime: metav1.NewMicroTime(noon), RenewTime: metav1.NewMicroTime(noon),
	}
	for _, option := range options {
		option(&h)
	}
	return h
}

// s is a Shared hold.
func s(owner string, token int64, options ...func(*v1alpha1.Hold)) v1alpha1.Hold {
	h := x(owner, token, options...)
	h.Mode = v1alpha1.Shared
	return h
}

// many are Shared holds whose owners have names of the greatest length that
// differ at their ends only.
func many(from, to int, token int64, options ...func(*v1alpha1.Hold)) []v1alpha1.Hold {
	var holds []v1alpha1.Hold
	for i := from; i < to; i++ {
		holds = append(holds, s(fmt.Sprintf("%0320d", i), token, options...))
	}
	return holds
}

func permits(n int32) func(*v1alpha1.Hold) { return func(h *v1alpha1.Hold) { h.Permits = n } }

func renewed(seconds int) func(*v1alpha1.Hold) {
	return renewedBy(time.Duration(seconds) * time.Second)
}

func renewedBy(d time.Duration) func(*v1alpha1.Hold) {
	return func(h *v1alpha1.Hold) { h.RenewTime = metav1.NewMicroTime(h.RenewTime.Add(d)) }
}

func revoked(h *v1alpha1.Hold) { h.RevokeTime = &metav1.MicroTime{Time: noon.Add(time.Second)} }
