package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Mode is how a lock is held.
//
// +kubebuilder:validation:Enum=Exclusive;Shared
type Mode string

const (
	// Exclusive is one hold alone.
	Exclusive Mode = "Exclusive"
	// Shared is a hold beside other Shared holds: a reader, or some permits of
	// a semaphore.
	Shared Mode = "Shared"
)

// DistLock is a lock that Jobs, LockClaims and programs of its namespace take
// in turns. Who holds it, until when and with which fencing token stands in its
// status, so applying the manifest again never changes who holds it. Create it
// with an empty spec for a plain mutual exclusion lock.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=dl
// +kubebuilder:selectablefield:JSONPath=`.status.lastGranted`
// +kubebuilder:printcolumn:name="Holder",type=string,JSONPath=`.status.holders[*].owner`,description="Owners of the holds."
// +kubebuilder:printcolumn:name="Token",type=integer,JSONPath=`.status.fencingToken`,description="The fencing token issued last."
// +kubebuilder:printcolumn:name="Expiry",type=string,JSONPath=`.status.holders[*].expiryTime`,description="When the leases end unless renewed; empty for a Job's or a LockClaim's hold."
// +kubebuilder:printcolumn:name="Waiting",type=integer,JSONPath=`.status.waiting`,description="How many wait; may lag."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="(has(self.status) && has(self.status.fencingToken) ? self.status.fencingToken : 0) >= (has(oldSelf.status) && has(oldSelf.status.fencingToken) ? oldSelf.status.fencingToken : 0)",message="status.fencingToken must not decrease: write back the status as it was read"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.holders) || (self.status.holders.all(h, h.fencingToken <= (has(oldSelf.status) && has(oldSelf.status.fencingToken) ? oldSelf.status.fencingToken : 0) || h.fencingToken == (has(self.status.fencingToken) ? self.status.fencingToken : 0)) && (has(oldSelf.status) && has(oldSelf.status.holders) ? sets.contains(oldSelf.status.holders.map(o, [string(o.fencingToken), o.owner]), self.status.holders.map(h, h.fencingToken <= (has(oldSelf.status) && has(oldSelf.status.fencingToken) ? oldSelf.status.fencingToken : 0), [string(h.fencingToken), h.owner])) : self.status.holders.all(h, h.fencingToken > (has(oldSelf.status) && has(oldSelf.status.fencingToken) ? oldSelf.status.fencingToken : 0))))",message="status.holders: a new hold must carry status.fencingToken, raised in the same write"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.holders) || self.status.holders.size() <= 1 || self.status.holders.all(h, h.mode == 'Shared')",message="status.holders: an Exclusive hold must be alone"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.holders) || !has(self.spec) || !has(self.spec.capacity) || self.status.holders.all(h, h.mode == 'Exclusive' || h.fencingToken <= (has(oldSelf.status) && has(oldSelf.status.fencingToken) ? oldSelf.status.fencingToken : 0)) || self.status.holders.map(h, h.permits).sum() <= self.spec.capacity",message="status.holders: the permits of the Shared holds must add up to at most spec.capacity when one is granted"
type DistLock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the lock is to be; written by its users.
	// +optional
	// +kubebuilder:default={}
	Spec DistLockSpec `json:"spec,omitempty"`
	// Who holds the lock and who waits. Written by the holders and by the
	// controller, always guarded by resourceVersion; do not write it by hand.
	// +optional
	Status DistLockStatus `json:"status,omitempty"`
}

// DistLockSpec is what a lock is to be. A change binds later grants; holds that
// are there stay as they were granted.
type DistLockSpec struct {
	// Seconds that a leased hold lives unless it is renewed, where its holder
	// names no duration of its own; 3 to 3600. A Job's hold, and a LockClaim's
	// without a lease, has none: it lives as long as the Job or the claim.
	// +optional
	// +kubebuilder:default=15
	// +kubebuilder:validation:Minimum=3
	// +kubebuilder:validation:Maximum=3600
	LeaseDurationSeconds int32 `json:"leaseDurationSeconds,omitempty"`
	// Permits that Shared holds may use together, which makes the lock a
	// semaphore: a request that names no mode is then Shared and takes one
	// permit. Without a capacity such a request is Exclusive, and up to 256
	// Shared holds share the lock. Lowering it takes nothing from the holders;
	// nobody new gets in until they fit.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Capacity *int32 `json:"capacity,omitempty"`
	// Seconds from a grant, 0 to 3600, before which the end of that hold does
	// not let the next one in: a hold that ends sooner closes the lock for the
	// rest. For runs shorter than the difference between the clocks of those
	// who start them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	MinHoldSeconds int32 `json:"minHoldSeconds,omitempty"`
	// Seconds after which a hold is revoked, 1 to 2592000 (30 days), counted by
	// the controller from when it saw the hold first. Without it a hold may
	// last for ever.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	MaxHoldSeconds *int32 `json:"maxHoldSeconds,omitempty"`
	// Seconds between the expiry of a hold (not its release) and the next
	// grant, 0 to 3600: time for what the lost holder started to come to its
	// end.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	LockDelaySeconds int32 `json:"lockDelaySeconds,omitempty"`
}

// DistLockStatus is who holds a lock and who waits for it.
type DistLockStatus struct {
	// The fencing token issued last; it never decreases, not even when the lock
	// is deleted and made anew. Written with every grant.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	FencingToken int64 `json:"fencingToken,omitempty"`
	// The holds: one Exclusive, or up to 256 Shared ones. Added by whoever
	// grants, renewed and removed by the holder, removed by the controller when
	// a hold expired or its object is gone.
	// +optional
	// +listType=map
	// +listMapKey=owner
	// +kubebuilder:validation:MaxItems=256
	Holders []Hold `json:"holders,omitempty"`
	// The first waiters (at most 32), the next one first. Ordered and refilled
	// by the controller; whoever releases the lock grants it to the head.
	// +optional
	// +listType=map
	// +listMapKey=owner
	// +kubebuilder:validation:MaxItems=32
	Queue []Waiter `json:"queue,omitempty"`
	// How many wait, also those that queue has no room for. Written by the
	// controller together with something else, so it may lag.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Waiting int32 `json:"waiting,omitempty"`
	// Owner of the hold granted last, a selectable field: a waiter watches for
	// its own name. It wakes and proves nothing; holders decides.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	LastGranted string `json:"lastGranted,omitempty"`
	// Seconds that the lock stays closed, counted by each observer from when it
	// first saw this value beside this fencingToken; then anyone may clear it.
	// Written by whoever ends a hold early (spec.minHoldSeconds) or expires one
	// (spec.lockDelaySeconds).
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	ClosedSeconds int32 `json:"closedSeconds,omitempty"`
}

// Hold is an owner's entry in a lock. It is leased when it has a
// leaseDurationSeconds: it ends unless renewed. Else it is bound: it ends with
// the object in ref.
//
// +kubebuilder:validation:XValidation:rule="self.fencingToken != oldSelf.fencingToken || (self.mode == oldSelf.mode && self.permits == oldSelf.permits)",message="a hold keeps its mode and permits"
// +kubebuilder:validation:XValidation:rule="self.fencingToken != oldSelf.fencingToken || !has(oldSelf.revokeTime) || (has(self.revokeTime) && self.renewTime == oldSelf.renewTime)",message="a hold with a revokeTime keeps it and cannot be renewed"
type Hold struct {
	// Unique name of this acquisition: job/NAME/UID, claim/UID, or a name the
	// client chose.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=320
	Owner string `json:"owner"`
	// Exclusive or Shared.
	// +required
	Mode Mode `json:"mode"`
	// Permits a Shared hold takes of spec.capacity; 1 for an Exclusive one.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Permits int32 `json:"permits"`
	// Token to hand to whatever the holder writes to, which refuses a lower one
	// than it has seen. Greater than every token granted before under this
	// lock's name.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=9007199254740991
	FencingToken int64 `json:"fencingToken"`
	// When the hold was granted, by the clock of whoever granted it.
	// Informative.
	// +required
	AcquireTime metav1.MicroTime `json:"acquireTime"`
	// When the hold was renewed last (at first: granted), by the clock of the
	// holder, and always later than before. Observers compare it for a change
	// only.
	// +required
	RenewTime metav1.MicroTime `json:"renewTime"`
	// renewTime and the lease; absent on a bound hold. Informative: an observer
	// expires a hold that it saw unchanged for the lease and a margin.
	// +optional
	ExpiryTime *metav1.MicroTime `json:"expiryTime,omitempty"`
	// The lease in seconds, 3 to 3600; absent on a bound hold.
	// +optional
	// +kubebuilder:validation:Minimum=3
	// +kubebuilder:validation:Maximum=3600
	LeaseDurationSeconds *int32 `json:"leaseDurationSeconds,omitempty"`
	// When the holder was asked to stop; from then on the hold cannot be
	// renewed. Written by the controller (spec.maxHoldSeconds) or by an
	// administrator.
	// +optional
	RevokeTime *metav1.MicroTime `json:"revokeTime,omitempty"`
	// The Job, LockClaim or Pod behind the hold, in the lock's namespace.
	// +optional
	Ref *ObjectRef `json:"ref,omitempty"`
}

// Waiter is a request in a lock's queue: what its Hold will be.
type Waiter struct {
	// Unique name of the acquisition; the Hold's owner.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=320
	Owner string `json:"owner"`
	// Exclusive or Shared.
	// +required
	Mode Mode `json:"mode"`
	// Permits wanted by a Shared request; 1 for an Exclusive one.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	Permits int32 `json:"permits"`
	// The lease in seconds, 3 to 3600; absent when the hold will be bound.
	// +optional
	// +kubebuilder:validation:Minimum=3
	// +kubebuilder:validation:Maximum=3600
	LeaseDurationSeconds *int32 `json:"leaseDurationSeconds,omitempty"`
	// The Job or LockClaim that waits, in the lock's namespace.
	// +optional
	Ref *ObjectRef `json:"ref,omitempty"`
}

// ObjectRef names one object: made anew under its name it has another uid and
// is another one.
type ObjectRef struct {
	// API version of the object, such as batch/v1.
	// +required
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`
	// Kind of the object: Job, LockClaim or Pod.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
	// UID of the object.
	// +required
	UID types.UID `json:"uid"`
}

// DistLockList is a list of DistLocks.
//
// +kubebuilder:object:root=true
type DistLockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DistLock `json:"items"`
}
