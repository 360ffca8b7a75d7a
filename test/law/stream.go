package law

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// judgeAfter is how many versions may have come since the last judgement before
// there is the next.
const judgeAfter = 256

// stream judges versions while they come in, from one watch for each kind. Each
// watch shows its kind in the order of storing; what all of them have got past
// can be put in order and judged, and need not be kept.
type stream struct {
	broken func(string)  // is told each break of the law
	each   func(Version) // is shown every version after it was judged; may be nil

	mu      sync.Mutex
	world   *world
	pending []Version
	next    int // how many pending start the next judgement
	judged  int
	shown   map[reflect.Type]int64 // how far each kind's watch has got
}

func newStream(broken func(string), each func(Version)) *stream {
	return &stream{broken: broken, each: each, world: newWorld(), next: judgeAfter, shown: map[reflect.Type]int64{
		reflect.TypeFor[*v1alpha1.DistLock](): 0, reflect.TypeFor[*batchv1.Job](): 0, reflect.TypeFor[*corev1.Pod](): 0,
	}}
}

// add takes in the next version of its kind.
func (s *stream) add(v Version) {
	v.Object.SetManagedFields(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown[v.kind()] = v.number()
	if s.pending = append(s.pending, v); len(s.pending) >= s.next {
		s.judge(s.complete())
	}
}

// complete is the version up to which nothing is missing.
func (s *stream) complete() int64 {
	return slices.Min(slices.Collect(maps.Values(s.shown)))
}

// finish judges what is left, when all watches have caught up.
func (s *stream) finish() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judge(math.MaxInt64)
	return s.judged
}

// judge judges what is pending up to a version.
func (s *stream) judge(upTo int64) {
	slices.SortStableFunc(s.pending, byNumber)
	n := 0
	for ; n < len(s.pending) && s.pending[n].number() <= upTo; n++ {
		s.world.store(s.pending[n])
		if s.each != nil {
			s.each(s.pending[n])
		}
	}
	for _, b := range s.world.broken {
		s.broken(b)
	}
	s.world.broken = nil
	s.judged += n
	s.pending = slices.Delete(s.pending, 0, n)
	s.next = 2*len(s.pending) + judgeAfter
}

// behind reports whether a watch has not got as far as that, by kind.
func (s *stream) behind(than map[reflect.Type]int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kind, n := range than {
		if s.shown[kind] < n {
			return true
		}
	}
	return false
}
