package protocol

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// Observed is what an observer knows of a lock beside its stored state.
// Durations are counted on the observer's monotonic clock.
type Observed struct {
	// Requests are those that wait, in any order; those that hold the lock are
	// passed over. A stored waiter that is not among them waits no more: that
	// must have been found by a live read. Where there are more requests than
	// can be granted and queued at once, it does with the first, as many as
	// that.
	Requests []Request
	// Beyond is how many wait behind Requests.
	Beyond int
	// Holds are the facts about each hold, by owner.
	Holds map[string]HoldFacts
	// ClosedFor is how long the present closedSeconds has been seen.
	ClosedFor time.Duration
}

// HoldFacts is what an observer knows of a hold. The zero value says nothing
// against it.
type HoldFacts struct {
	// Unchanged is how long this renewTime has been seen.
	Unchanged time.Duration
	// Held is how long this hold has been seen.
	Held time.Duration
	// Ended: what is behind the hold has come to its end (L5, L6): proven by live
	// reads for a bound hold, by its kubelet's word for the pod of a leased one.
	Ended bool
	// MustStop: the object behind the hold does not do what the hold stands
	// for, and must wait again.
	MustStop bool
	// Claimed: the LockClaim behind a leased hold is still there.
	Claimed bool
}

// Effects is what follows from a decision once it is stored.
type Effects struct {
	Granted  []v1alpha1.Hold
	Released []v1alpha1.Hold
	Expired  []v1alpha1.Hold
	Revoked  []v1alpha1.Hold
	// Finished are stale or ended holds whose claim must be deleted before they
	// end: a claim that outlived its hold would queue again.
	Finished []v1alpha1.Hold
	// Waiting are the requests that wait, in order.
	Waiting []Request
	// Why the first of them waits: ErrHeld, ErrClosed or ErrTokensExhausted.
	Why error
	// Impossible are requests for more permits than the lock has; they do not
	// wait, but may once the capacity is raised.
	Impossible []Request
	// Next is how long until something is due that no event announces; zero:
	// nothing is.
	Next time.Duration
}

// Decide is the reconciler's whole judgement of a lock: what ends, what is
// revoked, who is granted the lock, and what the stored queue should be. Where
// the state returned has the status that came in, there is nothing to write.
func Decide(s State, o Observed, now time.Time) (State, Effects) {
	next, e := judgeHolds(s, o.Holds, now)
	if next.Status.ClosedSeconds > 0 && next.Status.ClosedSeconds == s.Status.ClosedSeconds {
		if left := time.Duration(s.Status.ClosedSeconds)*time.Second - o.ClosedFor; left > 0 {
			e.Next = sooner(e.Next, left)
		} else {
			next = next.Open()
		}
	}
	q := grantInOrder(next, inOrder(s.Status.Queue, o.Requests), now)
	e.Granted, e.Waiting, e.Impossible, e.Why = q.granted, q.waiting, q.impossible, q.why
	return keepQueue(s, q.state, q.waiting, o.Beyond), e
}

// judgeHolds applies the verdict on every hold.
func judgeHolds(s State, facts map[string]HoldFacts, now time.Time) (State, Effects) {
	var e Effects
	next, closeFor := s, int32(0)
	for _, h := range s.Status.Holders {
		f := facts[h.Owner]
		verdict, due := judge(s.Spec, h, f)
		switch verdict {
		case keepHold:
			e.Next = sooner(e.Next, due)
		case finishClaim:
			e.Finished = append(e.Finished, h)
		case releaseHold:
			next, _ = next.end(h.Owner, h.FencingToken)
			closeFor = max(closeFor, s.minHoldLeft(f.Held))
			e.Released = append(e.Released, h)
		case expireHold:
			next, _ = next.end(h.Owner, h.FencingToken)
			closeFor = max(closeFor, s.minHoldLeft(f.Held), s.Spec.LockDelaySeconds)
			e.Expired = append(e.Expired, h)
		case revokeHold:
			next, _ = next.Revoke(h.Owner, now)
			e.Next = sooner(e.Next, due)
			e.Revoked = append(e.Revoked, h)
		}
	}
	return next.closeFor(closeFor), e
}

type verdict int

const (
	keepHold verdict = iota
	releaseHold
	expireHold
	finishClaim
	revokeHold
)

// judge is the verdict on one hold, and how long until a hold that stays must be
// judged again though nothing was heard of it (zero: never).
func judge(spec v1alpha1.DistLockSpec, h v1alpha1.Hold, f HoldFacts) (verdict, time.Duration) {
	if f.Ended && f.Claimed {
		return finishClaim, 0
	}
	if f.Ended {
		return releaseHold, 0
	}
	if HoldIsStale(h, f.Unchanged) {
		if f.Claimed {
			return finishClaim, 0
		}
		return expireHold, 0
	}
	var stale, tooLong time.Duration
	if lease := Lease(h); lease > 0 {
		stale = lease + Margin(lease) - f.Unchanged
	}
	if h.RevokeTime != nil {
		return keepHold, stale
	}
	if spec.MaxHoldSeconds != nil {
		tooLong = time.Duration(*spec.MaxHoldSeconds)*time.Second - f.Held
		if tooLong <= 0 {
			return revokeHold, stale
		}
	}
	if f.MustStop {
		return revokeHold, stale
	}
	return keepHold, sooner(stale, tooLong)
}

type grants struct {
	state      State
	granted    []v1alpha1.Hold
	waiting    []Request
	impossible []Request
	why        error // why the first waiter waits
}

// grantInOrder grants the lock to the first requests while there is room; where
// one does not fit, nobody behind it is granted.
func grantInOrder(s State, ordered []Request, now time.Time) grants {
	g := grants{state: s}
	for _, r := range ordered {
		if _, holds := s.Hold(r.Owner); holds {
			continue
		}
		if s.Impossible(r.Waiter) {
			if !r.Running {
				g.impossible = append(g.impossible, r)
				continue
			}
			r.Permits = *s.Spec.Capacity // nobody may run beside it: it gets all there is
		}
		if g.why != nil {
			g.waiting = append(g.waiting, r)
			continue
		}
		next, err := g.state.Grant(r.Waiter, now)
		if err != nil {
			g.why = err
			g.waiting = append(g.waiting, r)
			continue
		}
		if r.Running {
			next, _ = next.Revoke(r.Owner, now)
		}
		g.state = next
		h, _ := next.Hold(r.Owner)
		g.granted = append(g.granted, h)
	}
	return g
}

// keepQueue writes queue and waiting along with any other change, and by
// themselves only where the stored queue is off.
func keepQueue(before, next State, waiting []Request, beyond int) State {
	if sameBesideQueue(before.Status, next.Status) && !queueIsOff(before.Status.Queue, waiting) {
		return before
	}
	next = next.clone()
	next.Status.Queue = queueOf(waiting)
	next.Status.Waiting = int32(min(len(waiting)+beyond, math.MaxInt32)) //nolint:gosec // bounded here
	return next
}

func sameBesideQueue(a, b v1alpha1.DistLockStatus) bool {
	a.Queue, a.Waiting = b.Queue, b.Waiting
	return equality.Semantic.DeepEqual(a, b)
}

// sooner is the shorter of two durations, where zero stands for never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}
