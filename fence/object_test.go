package fence_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/fence"
)

func TestStampRefusesALowerToken(t *testing.T) {
	for _, row := range []struct {
		stored *string
		token  int64
		want   string // what the error says; none if empty
	}{
		{nil, 1, ""},
		{nil, 1<<53 - 1, ""},
		{of("7"), 7, ""},
		{of("7"), 10, ""}, // as numbers, not as text
		{of("7"), 6, "ns/report: stale fencing token 6, the resource has seen 7"},
		{of("10"), 9, "stale fencing token 9, the resource has seen 10"},
		{nil, 0, "0 is not a fencing token: want 1 to 9007199254740991"},
		{nil, -1, "-1 is not a fencing token"},
		{nil, 1 << 53, "9007199254740992 is not a fencing token"},
		{of(""), 1, `ns/report: annotation fence.distlock.dev/token: "" is not a fencing token`},
		{of("x"), 1, `"x" is not a fencing token`},
		{of("0"), 1, `"0" is not a fencing token`},
		{of("9007199254740992"), 1, `"9007199254740992" is not a fencing token`},
		{of("99999999999999999999"), 1, "is not a fencing token"},
	} {
		object := &unstructured.Unstructured{Object: map[string]any{}}
		object.SetNamespace("ns")
		object.SetName("report")
		if row.stored != nil {
			object.SetAnnotations(map[string]string{v1alpha1.FenceAnnotation: *row.stored, "other": "x"})
		}
		before := object.DeepCopy()
		err := fence.Stamp(object, row.token)
		switch {
		case row.want == "" && (err != nil || object.GetAnnotations()[v1alpha1.FenceAnnotation] != strconv.FormatInt(row.token, 10)):
			t.Errorf("token %d: %v, annotations %v", row.token, err, object.GetAnnotations())
		case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
			t.Errorf("token %d: %v, want %q", row.token, err, row.want)
		case row.want != "" && !reflect.DeepEqual(object, before):
			t.Errorf("token %d was refused, and the object changed", row.token)
		}
		if stale := strings.Contains(row.want, "stale"); errors.Is(err, fence.ErrStaleToken) != stale {
			t.Errorf("token %d: %v, stale: %t", row.token, err, stale)
		}
	}
}

func of(s string) *string { return &s }

func TestUpdateWritesWithItsTokenAndRefusesALowerOne(t *testing.T) {
	c := newConfigMap(t, false)
	for _, row := range []struct {
		token int64
		stale bool
		bears string
	}{{5, false, "5"}, {5, false, "5"}, {4, true, "5"}, {12, false, "12"}, {9, true, "12"}} {
		called := false
		written, err := fence.Update(t.Context(), c, objectName, row.token, func(cm *corev1.ConfigMap) error {
			called = true
			cm.Annotations = nil    // what guards the write is not change's to take away
			cm.ResourceVersion = "" // the same
			cm.Data = map[string]string{"by": strconv.FormatInt(row.token, 10)}
			return nil
		})
		if errors.Is(err, fence.ErrStaleToken) != row.stale || err != nil != row.stale || called == row.stale {
			t.Errorf("token %d: %v, change was called: %t", row.token, err, called)
		}
		if err == nil && written.Data["by"] != row.bears {
			t.Errorf("token %d: returned %v", row.token, written.Data)
		}
		c.wantToken(t, row.bears)
		if got := c.read(t).Data["by"]; got != row.bears {
			t.Errorf("after token %d it was written by %s", row.token, got)
		}
	}
}

// The holder pauses after it has read; its successor writes.
func TestAWriterThatWasPausedSeesItsSuccessor(t *testing.T) {
	c := newConfigMap(t, false)
	calls := 0
	_, err := fence.Update(t.Context(), c, objectName, 5, func(*corev1.ConfigMap) error {
		calls++
		if calls == 1 {
			_, err := fence.Update(t.Context(), c, objectName, 6, func(*corev1.ConfigMap) error { return nil })
			return err
		}
		return nil
	})
	if !errors.Is(err, fence.ErrStaleToken) || calls != 1 {
		t.Errorf("got %v after %d calls", err, calls)
	}
	c.wantToken(t, "6")
}

func TestUpdateBeginsAnewWhenAnotherWroteWithoutAToken(t *testing.T) {
	c := newConfigMap(t, false)
	calls := 0
	_, err := fence.Update(t.Context(), c, objectName, 5, func(cm *corev1.ConfigMap) error {
		calls++
		if calls == 1 {
			other := c.read(t)
			other.Data = map[string]string{"other": "x"}
			_, err := c.Update(t.Context(), other, metav1.UpdateOptions{})
			return err
		}
		cm.Data["mine"] = "y"
		return nil
	})
	if got := c.read(t).Data; err != nil || calls != 2 || got["other"] != "x" || got["mine"] != "y" {
		t.Errorf("%v after %d calls, and the object has %v", err, calls, got)
	}
}

func TestUpdateReturnsOtherErrorsAsTheyAre(t *testing.T) {
	c := newConfigMap(t, false)
	mine := errors.New("mine")
	if _, err := fence.Update(t.Context(), c, objectName, 5, func(*corev1.ConfigMap) error { return mine }); err != mine { //nolint:errorlint // as it is
		t.Errorf("got %v", err)
	}
	if _, err := fence.Update(t.Context(), c, "missing", 5, func(*corev1.ConfigMap) error { return nil }); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
	c.wantToken(t, "")
}

func TestInAnyOrderOfUpdatesTheTokensOnlyRise(t *testing.T) {
	c := newConfigMap(t, false)
	inAnyOrder(t, c, func(token int64) error {
		_, err := fence.Update(t.Context(), c, objectName, token, func(cm *corev1.ConfigMap) error {
			cm.Data = map[string]string{"by": strconv.FormatInt(token, 10)}
			return nil
		})
		if apierrors.IsConflict(err) { // too many at once
			return nil
		}
		return err
	}, func(err error) bool { return errors.Is(err, fence.ErrStaleToken) })
}

// inAnyOrder has many write with tokens that mostly rise, and judges every version
// that was stored.
func inAnyOrder(t *testing.T, c configMap, write func(token int64) error, refused func(error) bool) {
	t.Helper()
	versions, err := c.Watch(t.Context(), metav1.ListOptions{ResourceVersion: c.read(t).ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer versions.Stop()
	var (
		newest, refusals atomic.Int64
		all              sync.WaitGroup
	)
	newest.Store(10) // so that some have a digit more than others
	for range 6 {
		all.Go(func() {
			for range 25 {
				token := newest.Add(rand.Int64N(2)) - rand.Int64N(4)
				switch err := write(token); {
				case err != nil && refused(err):
					refusals.Add(1)
				case err != nil:
					t.Errorf("token %d: %v", token, err)
				}
			}
		})
	}
	all.Wait()
	last := newest.Add(1)
	if err := write(last); err != nil {
		t.Fatal(err)
	}
	var mark int64
	count := 0
	for mark < last {
		token := nextToken(t, versions)
		count++
		if token < mark {
			t.Errorf("version %d has token %d after %d", count, token, mark)
		}
		mark = max(mark, token)
	}
	t.Logf("%d versions, %d refused", count, refusals.Load())
	if count < 10 || refusals.Load() == 0 {
		t.Errorf("%d versions and %d refusals: nothing was tried", count, refusals.Load())
	}
}

func nextToken(t *testing.T, versions watch.Interface) int64 {
	t.Helper()
	select {
	case event := <-versions.ResultChan():
		cm, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			t.Fatalf("the watch says %v", event)
		}
		token, err := strconv.ParseInt(cm.Annotations[v1alpha1.FenceAnnotation], 10, 64)
		if err != nil || cm.Data["by"] != fmt.Sprint(token) {
			t.Fatalf("annotations %v, data %v", cm.Annotations, cm.Data)
		}
		return token
	case <-t.Context().Done():
		t.Fatal("the watch says nothing")
	}
	return 0
}
