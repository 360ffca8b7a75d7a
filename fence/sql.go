package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxResourceLength is how long the name of a resource may be, in bytes.
const MaxResourceLength = 255

// A Dialect is how one kind of database keeps marks.
type Dialect int

const (
	// PostgreSQL 9.5 and newer.
	PostgreSQL Dialect = iota + 1
	// MySQL is MySQL 5.7 and newer, and MariaDB 10.2 and newer. The table is one of
	// InnoDB, and the guarded ones must be too, since only they have transactions.
	MySQL
	// SQLite 3.35 and newer.
	SQLite
)

// statements are a dialect's: create makes the table; raise sets the mark to the
// greater of the one stored and the token, locks its row until the transaction ends,
// and returns the mark unless there is a statement of its own for that, read.
//
// The row is written and locked even where the token equals the mark or is lower:
// the lock is what makes the successor wait for a transaction that was let through.
// None of it depends on how the driver counts affected rows.
type statements struct{ create, raise, read string }

var dialects = map[Dialect]statements{
	PostgreSQL: {
		create: `CREATE TABLE IF NOT EXISTS distlock_fence (
	resource VARCHAR(255) COLLATE "C" NOT NULL PRIMARY KEY,
	token BIGINT NOT NULL
)`,
		// In READ COMMITTED this waits for a transaction that has written the row, and
		// goes by the row as that one left it; in the stricter levels it fails then.
		raise: `INSERT INTO distlock_fence AS f (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, excluded.token) RETURNING token`,
	},
	MySQL: {
		// VARBINARY: other collations take some different names for the same.
		create: `CREATE TABLE IF NOT EXISTS distlock_fence (
	resource VARBINARY(255) NOT NULL PRIMARY KEY,
	token BIGINT NOT NULL
) ENGINE = InnoDB`,
		raise: `INSERT INTO distlock_fence (resource, token) VALUES (?, ?)
ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)`,
		// A locking read sees the row as it is. One that does not lock would see the
		// snapshot, and make one for the rest of the transaction.
		read: `SELECT token FROM distlock_fence WHERE resource = ? FOR UPDATE`,
	},
	SQLite: {
		create: `CREATE TABLE IF NOT EXISTS distlock_fence (
	resource TEXT NOT NULL PRIMARY KEY,
	token INTEGER NOT NULL
) WITHOUT ROWID`,
		raise: `INSERT INTO distlock_fence (resource, token) VALUES (?, ?)
ON CONFLICT (resource) DO UPDATE SET token = max(token, excluded.token) RETURNING token`,
	},
}

// DDL is the definition of the table distlock_fence: one CREATE TABLE statement,
// without a semicolon. It has to be in the database of the guarded data.
func (d Dialect) DDL() string { return dialects[d].create }

// CreateTable creates the table distlock_fence unless it is there. Many may do so at
// once, and where the table is there no right to create one is needed.
func (d Dialect) CreateTable(ctx context.Context, db *sql.DB) error {
	s, err := d.statements()
	if err != nil || tableExists(ctx, db) {
		return err
	}
	// IF NOT EXISTS does not keep PostgreSQL from failing when two create it at once.
	if _, err := db.ExecContext(ctx, s.create); err != nil && !tableExists(ctx, db) {
		return fmt.Errorf("fence: creating the table distlock_fence: %w", err)
	}
	return nil
}

func tableExists(ctx context.Context, db *sql.DB) bool {
	_, err := db.ExecContext(ctx, "SELECT resource, token FROM distlock_fence WHERE 1 = 0")
	return err == nil
}

// Advance raises the resource's mark to token, or refuses a token that is lower than
// the mark with a [*StaleTokenError]. A token that equals the mark passes. Token is 1
// to 2^53-1; resource is 1 to [MaxResourceLength] bytes of UTF-8 without NUL.
//
// Call it first in the transaction, before anything is read. From then on, until the
// transaction ends, no other that guards the same resource gets past its Advance:
// each waits, sees all that this one did, and the one with the lower token is refused
// if this one commits. What was read before Advance may be older than that.
//
// When Advance returns an error, whichever it is, it has rolled the transaction back:
// nothing that was done in it can be committed. After an error other than
// [ErrStaleToken], such as a deadlock, a serialization failure, SQLITE_BUSY, or an
// elapsed lock timeout, the caller may begin anew with the same token.
//
// It holds at every isolation level, the default one of each database included.
func (d Dialect) Advance(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	err := d.advance(ctx, tx, resource, token)
	if err == nil {
		return nil
	}
	if rollback := tx.Rollback(); rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
		err = errors.Join(err, rollback)
	}
	return err
}

func (d Dialect) advance(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	s, err := d.statements()
	if err := errors.Join(err, checkResource(resource), checkToken(token)); err != nil {
		return err
	}
	mark, err := s.advance(ctx, tx, resource, token)
	switch {
	case err != nil:
		return fmt.Errorf("fence: %s: raising the mark to %d: %w", resource, token, err)
	case mark > token:
		return &StaleTokenError{Resource: resource, Token: token, Mark: mark}
	case mark < token: // a column that is too narrow, a trigger
		return fmt.Errorf("fence: %s: distlock_fence has kept %d in place of %d", resource, mark, token)
	}
	return nil
}

// advance returns the mark that results.
func (s statements) advance(ctx context.Context, tx *sql.Tx, resource string, token int64) (mark int64, err error) {
	if s.read == "" {
		err = tx.QueryRowContext(ctx, s.raise, resource, token).Scan(&mark)
		return mark, err
	}
	if _, err := tx.ExecContext(ctx, s.raise, resource, token, token); err != nil {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, s.read, resource).Scan(&mark)
	return mark, err
}

func (d Dialect) statements() (statements, error) {
	s, ok := dialects[d]
	if !ok {
		return s, fmt.Errorf("fence: there is no dialect %d: use PostgreSQL, MySQL or SQLite", d)
	}
	return s, nil
}

func checkResource(name string) error {
	switch {
	case name == "":
		return errors.New("fence: the name of the resource is empty")
	case len(name) > MaxResourceLength:
		return fmt.Errorf("fence: the name of the resource has %d bytes, more than %d: %.40q…", len(name), MaxResourceLength, name)
	case !utf8.ValidString(name) || strings.Contains(name, "\x00"):
		return fmt.Errorf("fence: the name of the resource is not UTF-8 without NUL: %q", name)
	}
	return nil
}
