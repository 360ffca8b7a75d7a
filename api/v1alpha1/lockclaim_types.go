package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LockClaim is a place in a lock's queue, then the hold itself: create it, wait
// for its Granted condition (kubectl wait --for=condition=Granted), work, and
// delete it. Deleting it gives up the place or the hold.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=lc
// +kubebuilder:selectablefield:JSONPath=`.spec.lockName`
// +kubebuilder:printcolumn:name="Lock",type=string,JSONPath=`.spec.lockName`
// +kubebuilder:printcolumn:name="Granted",type=string,JSONPath=`.status.conditions[?(@.type=="Granted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Granted")].reason`
// +kubebuilder:printcolumn:name="Token",type=integer,JSONPath=`.status.fencingToken`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LockClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is asked for; immutable.
	// +required
	Spec LockClaimSpec `json:"spec"`
	// Whether it is granted. Written by the controller, and only for a claim
	// without a lease: the holder of a leased one watches the lock itself.
	// +optional
	Status LockClaimStatus `json:"status,omitempty"`
}

// LockClaimSpec is what a claim asks for.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec is immutable: delete the LockClaim and create another"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode == 'Shared' || !has(self.permits) || self.permits == 1",message="spec.permits goes with mode Shared: leave it out, or set spec.mode to Shared"
type LockClaimSpec struct {
	// Name of the DistLock, in the claim's namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	LockName string `json:"lockName"`
	// Exclusive or Shared; where it is left out, Shared on a lock with a
	// capacity and Exclusive on one without.
	// +optional
	Mode *Mode `json:"mode,omitempty"`
	// Permits to take of the lock's capacity when Shared; one where it is left
	// out. More than the capacity are never granted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Permits *int32 `json:"permits,omitempty"`
	// Seconds of lease, 3 to 3600, for a claim whose holder renews its hold on
	// the DistLock itself, as the Go client does. Without it the hold needs no
	// renewal: it is bound to the claim and ends when the claim is deleted.
	// +optional
	// +kubebuilder:validation:Minimum=3
	// +kubebuilder:validation:Maximum=3600
	LeaseDurationSeconds *int32 `json:"leaseDurationSeconds,omitempty"`
}

// GrantedCondition is the condition type of a LockClaim: True while it holds the lock.
const GrantedCondition = "Granted"

// Reasons of the Granted condition.
const (
	// ReasonGranted: the claim holds the lock.
	ReasonGranted = "Granted"
	// ReasonWaiting: the claim is in the lock's queue.
	ReasonWaiting = "Waiting"
	// ReasonRevoked: the hold was revoked; stop, and delete the claim.
	ReasonRevoked = "Revoked"
	// ReasonLost: the hold ended although the claim is still there; stop, and
	// delete the claim.
	ReasonLost = "Lost"
	// ReasonLockNotFound: there is no DistLock of that name (yet).
	ReasonLockNotFound = "LockNotFound"
	// ReasonTooManyPermits: the claim asks for more than the lock's capacity.
	ReasonTooManyPermits = "TooManyPermits"
)

// LockClaimStatus is whether a claim is granted.
type LockClaimStatus struct {
	// The fencing token of the hold; absent until granted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	FencingToken int64 `json:"fencingToken,omitempty"`
	// Granted: True while the claim holds the lock; False with the reason
	// Waiting, LockNotFound, TooManyPermits, Revoked or Lost else.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LockClaimList is a list of LockClaims.
//
// +kubebuilder:object:root=true
type LockClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LockClaim `json:"items"`
}
