// Package fence tests package fence on real databases. It is a module of its own, so
// that their drivers are no requirements of DistLock.
package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/fence"
)

// patience is how long anything may take that is waited for.
const patience = time.Minute

// A database is what the tests need of one.
type database struct {
	fence.Dialect
	*sql.DB
	// levels are its isolation levels besides the default.
	levels []sql.IsolationLevel
	// oneWriter: every write waits for the transaction that writes already, whatever
	// the two are about.
	oneWriter bool
	// transient: the transaction failed because of another one, and is to be begun anew.
	transient func(error) bool
}

// The tables of the tests. account has one number for each resource, which writers
// read and then raise by one; journal has a row for each write; aside is neither
// guarded nor written.
var tables = []string{
	"CREATE TABLE account (resource VARCHAR(255) NOT NULL PRIMARY KEY, n BIGINT NOT NULL)",
	"CREATE TABLE journal (resource VARCHAR(255) NOT NULL, n BIGINT NOT NULL, token BIGINT NOT NULL, PRIMARY KEY (resource, n))",
	"CREATE TABLE aside (n BIGINT NOT NULL)",
}

// prepare makes the tables. The pool keeps a connection for each of many goroutines.
func (d *database) prepare(t *testing.T) *database {
	t.Helper()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	d.SetMaxIdleConns(workers)
	for _, ddl := range tables {
		d.exec(t, ddl)
	}
	if err := d.CreateTable(t.Context(), d.DB); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *database) begin(t *testing.T, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := d.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func (d *database) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	if _, err := d.ExecContext(t.Context(), d.bind(statement), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// advance is a transaction of its own.
func (d *database) advance(t *testing.T, resource string, token int64) error {
	t.Helper()
	tx := d.begin(t, sql.LevelDefault)
	if err := d.Advance(t.Context(), tx, resource, token); err != nil {
		return err
	}
	return tx.Commit()
}

// passes fails the test unless the token does.
func (d *database) passes(t *testing.T, resource string, token int64) {
	t.Helper()
	if err := d.advance(t, resource, token); err != nil {
		t.Errorf("token %d: %v", token, err)
	}
}

// mark is the stored one, 0 if there is none.
func (d *database) mark(t *testing.T, resource string) int64 {
	t.Helper()
	var mark int64
	err := d.QueryRowContext(t.Context(), d.bind("SELECT token FROM distlock_fence WHERE resource = ?"), resource).Scan(&mark)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	return mark
}

// newAccount has the number 0.
func (d *database) newAccount(t *testing.T, resource string) {
	t.Helper()
	d.exec(t, "INSERT INTO account VALUES (?, 0)", resource)
}

// write raises the account's number, as it reads it, and says so in the journal.
// Two that do so at the same time lose one of the two, or collide in the journal.
func (d *database) write(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	var n int64
	if err := tx.QueryRowContext(ctx, d.bind("SELECT n FROM account WHERE resource = ?"), resource).Scan(&n); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, d.bind("UPDATE account SET n = ? WHERE resource = ?"), n+1, resource); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, d.bind("INSERT INTO journal VALUES (?, ?, ?)"), resource, n+1, token)
	return err
}

// journal is the tokens of all writes that were committed, in their order.
func (d *database) journal(t *testing.T, resource string) []int64 {
	t.Helper()
	rows, err := d.QueryContext(t.Context(), d.bind("SELECT n, token FROM journal WHERE resource = ? ORDER BY n"), resource)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var tokens []int64
	for rows.Next() {
		var n, token int64
		if err := rows.Scan(&n, &token); err != nil {
			t.Fatal(err)
		}
		if tokens = append(tokens, token); n != int64(len(tokens)) {
			t.Errorf("the %d. write has the number %d", len(tokens), n)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return tokens
}

// bind puts in the dialect's place holders.
func (d *database) bind(statement string) string {
	for i := 1; d.Dialect == fence.PostgreSQL && strings.Contains(statement, "?"); i++ {
		statement = strings.Replace(statement, "?", fmt.Sprintf("$%d", i), 1)
	}
	return statement
}
