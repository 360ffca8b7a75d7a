package fence

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/distlock-dev/distlock/fence"
)

const mariadbd = "usr/sbin/mariadbd"

// The driver can count affected rows in two ways, and write parameters into the
// statement.
func TestMariaDB(t *testing.T) {
	s := newServer(t, mariadbd)
	socket := filepath.Join(s.dir, "socket")
	server := open(t, socket, "", "")
	startMariaDB(t, s, socket, server)
	for name, params := range map[string]string{"plain": "", "foundRows": "clientFoundRows=true", "interpolated": "interpolateParams=true"} {
		t.Run(name, func(t *testing.T) {
			if _, err := server.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
				t.Fatal(err)
			}
			db := (&database{
				Dialect: fence.MySQL, DB: open(t, socket, name, params),
				levels:    []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelSerializable},
				transient: mysqlTransient,
			}).prepare(t)
			keepsItsPromises(t, db)
			t.Run("a shell script does the same", func(t *testing.T) {
				home := t.TempDir() // with the client's options, as a user would have them
				options := "[client]\nuser=root\nsocket=" + socket + "\n[mysql]\ndatabase=" + name + "\n"
				if err := os.WriteFile(filepath.Join(home, ".my.cnf"), []byte(options), 0o600); err != nil {
					t.Fatal(err)
				}
				theScriptOfThePage(t, s, db, "update", "usr/bin/mariadb", "HOME="+home)
			})
		})
	}
}

func open(t *testing.T, socket, name, params string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", "root@unix("+socket+")/"+name+"?"+params)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func startMariaDB(t *testing.T, s server, socket string, db *sql.DB) {
	t.Helper()
	data := filepath.Join(s.dir, "data")
	s.run(t, "usr/bin/mariadb-install-db", "--no-defaults", "--basedir="+filepath.Join(s.root, "usr"), "--datadir="+data,
		"--auth-root-authentication-method=normal", "--skip-test-db")
	s.start(t, db, mariadbd, "--no-defaults", "--basedir="+filepath.Join(s.root, "usr"), "--datadir="+data,
		"--socket="+socket, "--pid-file="+filepath.Join(s.dir, "pid"), "--skip-networking",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=20", "--innodb-buffer-pool-size=16M")
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// mysqlTransient: ER_LOCK_DEADLOCK, ER_LOCK_WAIT_TIMEOUT, ER_CHECKREAD (of MariaDB, where
// innodb_snapshot_isolation is on).
func mysqlTransient(err error) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && slices.Contains([]uint16{1213, 1205, 1020}, refused.Number)
}
