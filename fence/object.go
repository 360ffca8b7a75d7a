package fence

import (
	"context"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// Stamp puts the token on an object that is about to be written, in the annotation
// fence.distlock.dev/token, or refuses a token lower than the one there with a
// [*StaleTokenError]. It refuses an annotation that is no token, too. A refused
// object is left as it is.
//
// The object must be as the API server returned it, and be written with the
// resourceVersion it came with: it is the conflict with a write in between that makes
// the check hold. A patch without resourceVersion is fenced only by the policy in
// config/fence. On an object that is to be created there is nothing to refuse.
func Stamp(obj metav1.Object, token int64) error {
	if err := checkToken(token); err != nil {
		return err
	}
	name := types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}.String()
	annotations := obj.GetAnnotations()
	if stored, ok := annotations[v1alpha1.FenceAnnotation]; ok {
		mark, err := strconv.ParseInt(stored, 10, 64)
		if err != nil || checkToken(mark) != nil {
			return fmt.Errorf("fence: %s: annotation %s: %q is not a fencing token", name, v1alpha1.FenceAnnotation, stored)
		}
		if mark > token {
			return &StaleTokenError{Resource: name, Token: token, Mark: mark}
		}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.FenceAnnotation] = strconv.FormatInt(token, 10)
	obj.SetAnnotations(annotations)
	return nil
}

// A Client reads and writes the objects of one kind in one namespace. Those of
// client-go's clientset are Clients.
type Client[T metav1.Object] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error)
}

// Update reads the object called name, stamps it with the token (see [Stamp]),
// applies change, and writes it if nobody else wrote it since it was read. After such
// a conflict it begins anew, a few times: a greater token that came in between is seen
// then. So change may be called more than once, each time on what was read last; it
// is not called for a stale token. An error of change ends it and is returned as it is.
//
// It returns the object as it was written.
func Update[T metav1.Object](ctx context.Context, c Client[T], name string, token int64, change func(T) error) (T, error) {
	var written T
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		obj, err := c.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := Stamp(obj, token); err != nil {
			return err
		}
		version := obj.GetResourceVersion()
		if err := change(obj); err != nil {
			return err
		}
		// Whatever change did to the metadata, what guards the write stays.
		obj.SetResourceVersion(version)
		if err := Stamp(obj, token); err != nil {
			return err
		}
		obj, err = c.Update(ctx, obj, metav1.UpdateOptions{})
		if err == nil {
			written = obj
		}
		return err
	})
	return written, err
}
