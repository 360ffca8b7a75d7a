package controllers

import (
	"context"
	"math"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/internal/protocol"
)

// requests makes requests of the askers of one lock, each as it is now.
type requests struct {
	*Reconciler
	g    *gathered
	made map[types.UID]*protocol.Request // nil: it wants nothing
	line int                             // those of made that the watch showed waiting
}

// gatherRequests makes requests of the first in line, as many as could be
// granted and queued at once, of the holders and the stored queue, and of those
// that must be looked at whatever their place. The others are counted.
func (r *Reconciler) gatherRequests(ctx context.Context, g *gathered) error {
	rs := requests{Reconciler: r, g: g, made: map[types.UID]*protocol.Request{}}
	if err := rs.fromStored(ctx); err != nil {
		return err
	}
	if err := rs.fromLine(ctx); err != nil {
		return err
	}
	for _, a := range r.askers.aside(g.key) {
		if _, err := rs.of(ctx, a); err != nil {
			return err
		}
	}
	for _, request := range rs.made {
		if request != nil {
			g.observed.Requests = append(g.observed.Requests, *request)
		}
	}
	_, all := r.askers.place(g.key, "")
	g.observed.Beyond = max(all-rs.line, 0)
	return nil
}

// fromStored makes requests of the stored queue, and of the holders: one whose
// hold ends may wait again.
func (rs *requests) fromStored(ctx context.Context) error {
	refs := make([]*v1alpha1.ObjectRef, 0, len(rs.g.lock.Status.Queue)+1)
	for _, h := range rs.g.lock.Status.Holders {
		refs = append(refs, h.Ref)
	}
	for _, w := range rs.g.lock.Status.Queue {
		refs = append(refs, w.Ref)
	}
	for _, ref := range refs {
		kind := refKind(ref)
		if kind == kindOther {
			continue
		}
		a, known := rs.askers.find(rs.g.key, ref.UID)
		if !known {
			a = asker{kind: kind, uid: ref.UID, name: ref.Name, seen: math.MaxInt64}
		}
		if _, err := rs.of(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// fromLine makes requests down the line until those behind can neither be granted
// the lock now nor have a place in the stored queue: behind an Exclusive request
// nobody is granted it.
func (rs *requests) fromLine(ctx context.Context) error {
	var last asker
	for wanted, blocked := 0, 0; blocked <= v1alpha1.MaxQueue && wanted < v1alpha1.MaxQueue+v1alpha1.MaxHolders; {
		next := rs.askers.after(rs.g.key, last, v1alpha1.MaxQueue)
		if len(next) == 0 {
			return nil
		}
		for _, last = range next {
			request, err := rs.of(ctx, last)
			if err != nil {
				return err
			}
			if request == nil || rs.g.state.Impossible(request.Waiter) {
				continue
			}
			if _, holds := rs.g.state.Hold(request.Owner); holds {
				continue
			}
			wanted++
			if blocked > 0 || request.Mode == v1alpha1.Exclusive {
				blocked++
			}
		}
	}
	return nil
}

// of is the request of an asker as it is now; nil where it wants nothing.
func (rs *requests) of(ctx context.Context, a asker) (*protocol.Request, error) {
	if request, done := rs.made[a.uid]; done {
		return request, nil
	}
	var request *protocol.Request
	var err error
	switch a.kind {
	case kindJob:
		request, err = rs.ofJob(ctx, a)
	case kindClaim:
		request, err = rs.ofClaim(ctx, a)
	case kindOther:
	}
	if err == nil && request == nil && rs.g.jobs[a.uid] == nil && rs.g.claims[a.uid] == nil {
		rs.askers.gone(rs.g.key, a.uid) // there is none, by a live read
	}
	rs.made[a.uid] = request
	if a.waits && !a.ended {
		rs.line++
	}
	return request, err
}

func (rs *requests) ofJob(ctx context.Context, a asker) (*protocol.Request, error) {
	job, err := rs.findJob(ctx, rs.g, a.ref())
	if err != nil {
		return nil, err
	}
	if job == nil || job.DeletionTimestamp != nil {
		return rs.ofDeletedJob(ctx, a)
	}
	f := factsOf(job)
	if f.finished { // that is for good, and no watch may tell of it
		rs.askers.note(rs.g.key, a.uid, func(a *asker) { a.waits, a.watched, a.underway = false, false, false })
	}
	if !f.waits() || f.lock != rs.g.key.Name {
		return nil, nil
	}
	if now, _ := rs.askers.find(rs.g.key, a.uid); now.ended {
		return nil, nil // its one pod succeeded: it is complete, and will soon be said to be
	}
	running := false
	if _, holds := rs.g.state.Hold(jobOwner(job)); !holds && (f.mayRun() || a.strayed) {
		if job, running, err = rs.confirmIntruder(ctx, rs.g, job); err != nil || job == nil {
			return nil, err
		}
		rs.g.jobs[a.uid], f = job, factsOf(job)
	}
	return rs.ask(job, f, a.seen, running), nil
}

// ofDeletedJob keeps the lock from others while a Job that ran without it, and is
// deleted, has pods. That of a hold is judged with the hold.
func (rs *requests) ofDeletedJob(ctx context.Context, a asker) (*protocol.Request, error) {
	now, _ := rs.askers.find(rs.g.key, a.uid)
	owner := "job/" + a.name + "/" + string(a.uid)
	if _, holds := rs.g.state.Hold(owner); holds || !now.mayHavePods() {
		return nil, nil
	}
	ended, err := rs.strayEnded(ctx, rs.g, now)
	if err != nil || ended {
		return nil, err
	}
	return rs.keptFromOthers(owner, a.ref()), nil
}

// keptFromOthers is the request of a Job that may have pods and cannot be asked what
// it wants.
func (rs *requests) keptFromOthers(owner string, ref *v1alpha1.ObjectRef) *protocol.Request {
	return &protocol.Request{
		Waiter:  protocol.NewWaiter(rs.g.lock.Spec, owner, new(v1alpha1.Exclusive), nil, nil, ref),
		Running: true,
	}
}

// ask is a Job's request; where it asks for what cannot be, it asks for nothing,
// or, if it may have pods all the same, for the lock to be kept from others.
func (rs *requests) ask(job *batchv1.Job, f jobFacts, seen int64, running bool) *protocol.Request {
	request, err := jobRequest(job, f, rs.g.lock.Spec, seen, running)
	if err == nil {
		return &request
	}
	rs.g.bad = append(rs.g.bad, badRequest{job, err})
	if !running {
		return nil
	}
	return rs.keptFromOthers(jobOwner(job), jobRef(job))
}

func (rs *requests) ofClaim(ctx context.Context, a asker) (*protocol.Request, error) {
	claim, err := rs.findClaim(ctx, rs.g, a.ref())
	if err != nil || claim == nil || !claimWaits(claim) {
		return nil, err
	}
	if a.ended {
		return nil, nil // its status does not say so: its holder released, and deletes it now
	}
	return new(claimRequest(claim, rs.g.lock.Spec, a.seen)), nil
}
