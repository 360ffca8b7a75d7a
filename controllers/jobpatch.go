package controllers

import (
	"encoding/json"
	"maps"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// jobPatch is a JSON Patch (RFC 6902). Its tests are its guard: unlike a
// resourceVersion, they do not fail for the Job controller's own writes.
type jobPatch []patchOp

type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Type implements client.Patch.
func (jobPatch) Type() types.PatchType { return types.JSONPatchType }

// Data implements client.Patch.
func (p jobPatch) Data(client.Object) ([]byte, error) { return json.Marshal(p) }

// unchanged tests that a Job is the one that was read and that nobody has
// granted, revoked or requeued it since: all of that shows in suspend and in the
// annotations of the Job and its template.
func unchanged(job *batchv1.Job, suspended bool) jobPatch {
	p := jobPatch{
		{"test", "/metadata/uid", job.UID},
		{"test", "/metadata/annotations", job.Annotations},
		{"test", "/spec/suspend", suspended},
	}
	if t := job.Spec.Template.Annotations; len(t) > 0 {
		p = append(p, patchOp{"test", "/spec/template/metadata/annotations", t})
	}
	return p
}

func replace(path string, value any) patchOp { return patchOp{"replace", path, value} }

func setAnnotation(key, value string) patchOp {
	return patchOp{"add", "/metadata/annotations/" + pointerEscape.Replace(key), value}
}

// setTemplateAnnotation sets an annotation of the pod template as a part of the
// whole map, which may not be there yet.
func setTemplateAnnotation(job *batchv1.Job, key, value string) patchOp {
	annotations := map[string]string{}
	maps.Copy(annotations, job.Spec.Template.Annotations)
	annotations[key] = value
	return patchOp{"add", "/spec/template/metadata/annotations", annotations}
}

var pointerEscape = strings.NewReplacer("~", "~0", "/", "~1")
