package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// refuseWhileInstalled fails while anything of DistLock is there that starts
// waiting Jobs in their turn. What may not be read is said, and passed over: the
// CRD is what everybody sees, and it goes last.
func (o *waitingOptions) refuseWhileInstalled(ctx context.Context, c *cluster) error {
	if _, err := c.RESTMapper().RESTMapping(v1alpha1.GroupVersion.WithKind("DistLock").GroupKind(), v1alpha1.GroupVersion.Version); !meta.IsNoMatchError(err) {
		if err != nil {
			return err
		}
		return installed("the CRD distlocks.distlock.dev is there")
	}
	for _, part := range []struct {
		what   string
		key    client.ObjectKey
		object client.Object
	}{
		{"policy", client.ObjectKey{Name: "distlock-gate-jobs"}, &admissionregistrationv1.MutatingAdmissionPolicy{}},
		{"policy", client.ObjectKey{Name: "distlock-guard-jobs"}, &admissionregistrationv1.ValidatingAdmissionPolicy{}},
		{"controller", client.ObjectKey{Namespace: v1alpha1.ControllerNamespace, Name: v1alpha1.ControllerServiceAccount}, &appsv1.Deployment{}},
	} {
		err := c.Get(ctx, part.key, part.object)
		switch {
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		case apierrors.IsForbidden(err):
			o.say("cannot see whether the %s %s is there: you may not read it", part.what, part.key.Name)
		case err != nil:
			return err
		default:
			return installed("the " + part.what + " " + part.key.Name + " is there")
		}
	}
	return nil
}

func installed(what string) error {
	return exitWith(exitFailed, "--resume: DistLock is installed (%s) and starts each Job in its turn: to free a lock, kubectl distlock revoke; to take DistLock away, see Uninstall in its README", what)
}

// resumeAll starts Jobs, those that are still suspended.
func (o *waitingOptions) resumeAll(ctx context.Context, c *cluster, jobs []batchv1.Job) error {
	if len(jobs) == 0 {
		o.say("no Jobs wait for a lock here; look elsewhere with -n or -A")
	}
	var errs []error
	for i := range jobs {
		errs = append(errs, o.resumeJob(ctx, c, &jobs[i]))
	}
	return errors.Join(errs...)
}

func (o *waitingOptions) resumeJob(ctx context.Context, c *cluster, j *batchv1.Job) error {
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": j.UID},
		{"op": "replace", "path": "/spec/suspend", "value": false},
	})
	if err != nil {
		return err
	}
	err = c.Patch(ctx, j, client.RawPatch(types.JSONPatchType, patch))
	if apierrors.IsNotFound(err) {
		o.say("Job %q in namespace %q is gone", j.Name, j.Namespace)
		return nil
	}
	if err != nil {
		return fmt.Errorf("starting Job %q in namespace %q: %w", j.Name, j.Namespace, err)
	}
	return lines(o.Out, fmt.Sprintf("job.batch/%s (namespace %s): started without a lock", j.Name, j.Namespace))
}
