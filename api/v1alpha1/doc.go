// Package v1alpha1 is the distlock.dev/v1alpha1 API: DistLock, the lock, and
// LockClaim, a place in its queue.
//
// +kubebuilder:object:generate=true
// +groupName=distlock.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: "distlock.dev", Version: "v1alpha1"}

// SchemeBuilder collects this package's kinds.
var SchemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &DistLock{}, &DistLockList{}, &LockClaim{}, &LockClaimList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
})

// AddToScheme adds this package's kinds to a scheme.
var AddToScheme = SchemeBuilder.AddToScheme
