package fence

import (
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/distlock-dev/distlock/fence"
)

// Transactions are deferred by default: they become writers with their first write.
func TestSQLite(t *testing.T) {
	keepsItsPromises(t, openSQLite(t, "_pragma=journal_mode(WAL)&_pragma=busy_timeout(20000)"))
}

func TestSQLiteInOtherModes(t *testing.T) {
	for name, params := range map[string]string{
		"rollback journal":                   "_pragma=busy_timeout(20000)",
		"rollback journal, begins immediate": "_pragma=busy_timeout(20000)&_txlock=immediate",
		"WAL, begins immediate":              "_pragma=journal_mode(WAL)&_pragma=busy_timeout(20000)&_txlock=immediate",
		"WAL, does not wait":                 "_pragma=journal_mode(WAL)",
	} {
		t.Run(name, func(t *testing.T) { tokensOnlyRise(t, openSQLite(t, params)) })
	}
}

func openSQLite(t *testing.T, params string) *database {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=synchronous(OFF)&"+params)
	if err != nil {
		t.Fatal(err)
	}
	return (&database{Dialect: fence.SQLite, DB: db, oneWriter: true, transient: sqliteTransient}).prepare(t)
}

// sqliteTransient: SQLITE_BUSY, with its extended codes.
func sqliteTransient(err error) bool {
	var refused *sqlite.Error
	return errors.As(err, &refused) && refused.Code()&0xff == sqlite3.SQLITE_BUSY
}
