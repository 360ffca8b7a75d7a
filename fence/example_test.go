package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/distlock-dev/distlock/fence"
)

// A batch books into a ledger while it holds a lock. Advance comes first, so that
// nothing is read before the mark is raised.
func ExampleDialect_Advance() { //nolint:testableexamples // needs a database
	book := func(ctx context.Context, db *sql.DB, token int64, amount int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
		if err := fence.PostgreSQL.Advance(ctx, tx, "ledger", token); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE ledger SET total = total + $1 WHERE id = 1", amount); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = book
}

// In a container of a Job that holds a lock the token is in the environment.
func ExampleDialect_Advance_inAJob() { //nolint:testableexamples // needs a database
	run := func(ctx context.Context, tx *sql.Tx) error {
		token, err := strconv.ParseInt(os.Getenv("DISTLOCK_FENCING_TOKEN"), 10, 64)
		if err != nil {
			return err // the Job bears no token: not taken in by the gate, or without a lock
		}
		err = fence.MySQL.Advance(ctx, tx, os.Getenv("DISTLOCK_NAME"), token)
		if errors.Is(err, fence.ErrStaleToken) {
			os.Exit(1) // the Job's hold has ended
		}
		return err
	}
	_ = run
}

func ExampleDialect_CreateTable() { //nolint:testableexamples // needs a database
	start := func(ctx context.Context, db *sql.DB) error {
		return fence.SQLite.CreateTable(ctx, db)
	}
	_ = start
}

func ExampleUpdate() { //nolint:testableexamples // needs a cluster
	publish := func(ctx context.Context, clientset kubernetes.Interface, token int64, total string) error {
		_, err := fence.Update(ctx, clientset.CoreV1().ConfigMaps("reports"), "summary", token,
			func(cm *corev1.ConfigMap) error {
				cm.Data = map[string]string{"total": total}
				return nil
			})
		return err
	}
	_ = publish
}

// An object that was read is written by any client, with the resourceVersion it was
// read with.
func ExampleStamp() {
	asRead := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "reports", Name: "summary", ResourceVersion: "5120",
		Annotations: map[string]string{"fence.distlock.dev/token": "307"},
	}}
	fmt.Println(fence.Stamp(asRead, 306))
	fmt.Println(fence.Stamp(asRead, 308), asRead.Annotations["fence.distlock.dev/token"])
	// Output:
	// fence: reports/summary: stale fencing token 306, the resource has seen 307
	// <nil> 308
}

func ExampleStaleTokenError() {
	err := fmt.Errorf("booking: %w", &fence.StaleTokenError{Resource: "ledger", Token: 306, Mark: 307})
	if stale, ok := errors.AsType[*fence.StaleTokenError](err); ok {
		fmt.Printf("token %d was overtaken by %d\n", stale.Token, stale.Mark)
	}
	fmt.Println(errors.Is(err, fence.ErrStaleToken))
	// Output:
	// token 306 was overtaken by 307
	// true
}
