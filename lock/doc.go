// Package lock is for programs that take a DistLock: a lock in a Kubernetes cluster,
// kept by its API server, with a fencing token for each holder.
//
//	locks, err := lock.NewClient(nil) // in a pod, or with a kubeconfig
//	...
//	err = locks.Do(ctx, "nightly", func(ctx context.Context, h *lock.Hold) error {
//		return store.Write(ctx, report, h.Token())
//	}, lock.Wait(time.Minute))
//
// Create the lock once, as any other object, with an empty spec:
//
//	apiVersion: distlock.dev/v1alpha1
//	kind: DistLock
//	metadata: {name: nightly}
//
// # What a hold is
//
// A hold is leased. It is renewed in the background every third of its lease, and
// ends when that fails for too long: its context ends a margin (a tenth of the lease,
// at least 250 ms) before anybody else may expire it. The holder counts from the
// sending of the last renewal that succeeded, on its monotonic and on its wall clock,
// and believes the one that says more. No clock is compared with another machine's;
// only the rates at which clocks go must agree, to within the margin.
//
// A lease alone cannot stop a process that stands still (garbage collection, a frozen
// machine, a signal) and wakes up after it: it may write before it looks. So hand
// Hold.Token to what you write to, and let that refuse lower tokens than it has seen;
// package fence does it for databases and for Kubernetes objects.
//
// # Waiting
//
// Acquire takes a free lock with one write. Where the lock is held it takes a place in
// the queue, a LockClaim, and is woken when its turn comes: first come, first served,
// across programs, Jobs and LockClaims. It also works while DistLock's controller is
// away; only order and promptness suffer then. A request that ends, for whatever
// reason, leaves no place behind; that of a process that was killed goes with its pod,
// or else when its turn comes and the lease that it then gets has ended.
//
// # Permissions
//
// The program's service account needs the ClusterRole distlock-holder-role in its
// namespace, or a Role for the locks that it takes; see docs/rbac.md.
package lock
