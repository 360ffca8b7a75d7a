// Package fence is what a protected resource does with a fencing token: it
// remembers the greatest token it has seen, its mark, and refuses a write that
// carries a lower one.
//
// A lock with a lease cannot stop a process that was paused, or cut off, while it
// held the lock: when it wakes up it goes on writing, and another holds the lock by
// then. But each Exclusive hold has a fencing token, which is greater than every
// token granted before under that lock's name. If every write to the resource
// carries the token, and the resource refuses those that are lower than its mark,
// the late write of the former holder is refused. The token comes from the lock's
// Hold, or from DISTLOCK_FENCING_TOKEN in the containers of a gated Job.
//
// # SQL
//
// A [Dialect] keeps marks in a table beside the data, distlock_fence, one row for
// each resource. [Dialect.Advance] raises a resource's mark inside the caller's own
// transaction, or refuses the token; the writes that follow in that transaction are
// the guarded ones:
//
//	tx, err := db.BeginTx(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer tx.Rollback()
//	if err := fence.PostgreSQL.Advance(ctx, tx, "ledger", token); err != nil {
//		return err // errors.Is(err, fence.ErrStaleToken): somebody else holds the lock
//	}
//	if _, err := tx.ExecContext(ctx, "UPDATE ledger SET …"); err != nil {
//		return err
//	}
//	return tx.Commit()
//
// The resource is any name on which all writers agree, and it belongs to one lock:
// the tokens of two locks have nothing to do with each other. [Dialect.CreateTable]
// makes the table where it is missing, and [Dialect.DDL] is its definition, for
// those who manage their schema by other means.
//
// # Kubernetes objects
//
// An object bears its mark itself, in the annotation fence.distlock.dev/token.
// [Update] reads an object, refuses a stale token, changes the object, and writes it
// guarded by its resourceVersion:
//
//	_, err := fence.Update(ctx, clientset.CoreV1().ConfigMaps("reports"), "summary", token,
//		func(cm *corev1.ConfigMap) error {
//			cm.Data["total"] = total
//			return nil
//		})
//
// [Stamp] is the part that needs no client, for those who write by other clients.
// Both check in the writer. The admission policy in config/fence, which is installed
// separately, has the API server check: it refuses a lower token, or the removal of
// one, on every object with the label fence.distlock.dev/fenced=true, however it is
// written.
//
// # Limits
//
// The mark is for Exclusive holds. Shared holders have different tokens at the same
// time, and none of them is stale: they ask their Hold whether it is still theirs.
//
// The same token passes any number of times, since one hold may write often. What
// a holder does with two threads, it has to order itself.
//
// A write that does not carry a token is not fenced.
//
// A mark that is lost does not refuse: a database restored from a backup, or an
// object that was deleted and created anew, starts lower. A lock's token that starts
// lower, as in another cluster, is refused until it is raised above the marks.
// docs/fencing.md says what to do in each case.
package fence
