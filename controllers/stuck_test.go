package controllers_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestALockGoesOnAlthoughTheWatchOnItIsStuck(t *testing.T) {
	ns := namespace(t)
	c := startController(t, ns)
	lockIn(t, ns, "nightly", v1alpha1.DistLockSpec{})
	holder := untilClaim(t, claimOn(t, ns, "holder", "nightly", nil), v1alpha1.ReasonGranted)

	c.gate("distlocks").Lock()
	t.Cleanup(c.gate("distlocks").Unlock)
	claimOn(t, ns, "one", "nightly", nil)
	untilQueued(t, ns, "nightly", 1) // from here on the cache lacks what the controller itself wrote
	two := claimOn(t, ns, "two", "nightly", nil)
	untilQueued(t, ns, "nightly", 2)
	must(t, admin.Delete(t.Context(), &v1alpha1.LockClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one"}}))
	must(t, admin.Delete(t.Context(), holder))
	untilClaim(t, two, v1alpha1.ReasonGranted)
}

// The holder renewed unseen, and died.
func TestALeaseRunsOutAlthoughTheWatchOnItsLockIsStuck(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	c := startController(t, ns)
	holder := newHolder(t, ns, "service", 3)
	c.untilFigure(t, "distlock_holds", 1)
	c.gate("distlocks").Lock()
	t.Cleanup(c.gate("distlocks").Unlock)
	holder.renewTimes(t, 2)
	untilFree(t, ns, "service")
}
