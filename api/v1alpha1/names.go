package v1alpha1

// Annotations a user sets on a Job or a CronJob. The gate copies a CronJob's to
// its Jobs; any other annotation under distlock.dev/ is refused.
const (
	// LockAnnotation names the DistLock, in the same namespace, that the Job
	// must hold while it has running pods.
	LockAnnotation = "distlock.dev/lock"
	// ModeAnnotation is the Mode to hold it in; without it the lock decides
	// (see LockClaimSpec.Mode).
	ModeAnnotation = "distlock.dev/mode"
	// PermitsAnnotation is the number of permits a Shared hold takes, in
	// decimal; without it, one.
	PermitsAnnotation = "distlock.dev/permits"
)

// Marks that only the controller and the gate write.
const (
	// GatedLabel is "true" on every Job the gate took in, and on its pods.
	GatedLabel = "distlock.dev/gated"
	// TokenAnnotation is the fencing token, in decimal, on a gated Job's pod
	// template and so on its pods.
	TokenAnnotation = "distlock.dev/fencing-token" //nolint:gosec // the name of an annotation
	// QueuedAtAnnotation is when a revoked Job went back to the end of the
	// queue, in RFC 3339 with microseconds: its place, instead of its
	// creationTimestamp.
	QueuedAtAnnotation = "distlock.dev/queued-at"
	// RevokedTokenAnnotation is the fencing token of the hold that a Job gave
	// up last because it was revoked, in decimal.
	RevokedTokenAnnotation = "distlock.dev/revoked-token" //nolint:gosec // the name of an annotation
)

// Marks of objects that are fenced (package fence).
const (
	// FenceAnnotation is the greatest fencing token, in decimal, that an object
	// was written with.
	FenceAnnotation = "fence.distlock.dev/token"
	// FencedLabel is "true" on the objects whose token the policy in
	// config/fence guards.
	FencedLabel = "fence.distlock.dev/fenced"
)

// Environment of every container of a gated Job.
const (
	// LockNameEnv is the name of the lock the Job holds.
	LockNameEnv = "DISTLOCK_NAME"
	// TokenEnv is the fencing token, in decimal.
	TokenEnv = "DISTLOCK_FENCING_TOKEN" //nolint:gosec // the name of a variable
)

// Where config/default installs the controller. The policies know it by this
// service account.
const (
	ControllerNamespace      = "distlock-system"
	ControllerServiceAccount = "distlock-controller-manager"
	ControllerUser           = "system:serviceaccount:" + ControllerNamespace + ":" + ControllerServiceAccount
)

// Bounds that the schema sets and code must know.
const (
	// MaxHolders is how many holds a lock can have at once.
	MaxHolders = 256
	// MaxQueue is how many of the waiters a lock's status stores.
	MaxQueue = 32
	// MaxToken is the greatest fencing token: below 2^53, so that it survives
	// every JSON implementation.
	MaxToken = 1<<53 - 1
	// DefaultLeaseSeconds is DistLockSpec.LeaseDurationSeconds where it is not
	// set.
	DefaultLeaseSeconds = 15
)
