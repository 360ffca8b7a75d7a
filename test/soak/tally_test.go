package soak

import (
	"fmt"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/test/law"
)

// tally counts what the watcher of the law shows it.
type tally struct {
	mu       sync.Mutex
	grants   map[string]int             // by lock
	holds    map[string]map[string]bool // by lock, as it was stored last
	finished map[types.UID]bool         // Jobs that are stored
	runs     int
	pods     int
}

func newTally() *tally {
	return &tally{grants: map[string]int{}, holds: map[string]map[string]bool{}, finished: map[types.UID]bool{}}
}

func (y *tally) count(v law.Version) {
	y.mu.Lock()
	defer y.mu.Unlock()
	switch o := v.Object.(type) {
	case *v1alpha1.DistLock:
		holds := map[string]bool{}
		for _, h := range o.Status.Holders {
			hold := fmt.Sprintf("%s %d", h.Owner, h.FencingToken)
			if holds[hold] = true; !y.holds[o.Name][hold] {
				y.grants[o.Name]++
			}
		}
		y.holds[o.Name] = holds
	case *batchv1.Job:
		if ended(o) && !y.finished[o.UID] {
			y.finished[o.UID] = true
			y.runs++
		}
		if v.Deleted {
			delete(y.finished, o.UID)
		}
	case *corev1.Pod:
		if v.Deleted {
			y.pods++
		}
	}
}

func ended(j *batchv1.Job) bool {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// granted is how often locks were granted, in all and the least of them.
func (y *tally) granted(locks int) (sum, least int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	least = y.grants[lockName(0)]
	for i := range locks {
		sum += y.grants[lockName(i)]
		least = min(least, y.grants[lockName(i)])
	}
	return sum, least
}

func (y *tally) finishedRuns() (jobs, pods int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.runs, y.pods
}
