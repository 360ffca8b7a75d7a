package fence

import (
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/distlock-dev/distlock/fence"
)

const postgresBin = "usr/lib/postgresql/*/bin/"

func TestPostgreSQL(t *testing.T) {
	s, db := startPostgreSQL(t)
	keepsItsPromises(t, db)
	t.Run("a shell script does the same", func(t *testing.T) {
		theScriptOfThePage(t, s, db, "psql", postgresBin+"psql", "PGHOST="+s.dir, "PGUSER=postgres", "PGDATABASE=postgres")
	})
}

func startPostgreSQL(t *testing.T) (server, *database) {
	t.Helper()
	s := newServer(t, postgresBin+"postgres")
	data := filepath.Join(s.dir, "data")
	s.run(t, postgresBin+"initdb", "--pgdata="+data, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
	db, err := sql.Open("pgx", "host="+s.dir+" user=postgres database=postgres")
	if err != nil {
		t.Fatal(err)
	}
	s.start(t, db, postgresBin+"postgres", "-D", data, "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "jit=off")
	return s, (&database{
		Dialect: fence.PostgreSQL, DB: db,
		levels:    []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable},
		transient: postgresTransient,
	}).prepare(t)
}

// postgresTransient: serialization_failure, deadlock_detected.
func postgresTransient(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && slices.Contains([]string{"40001", "40P01"}, pg.Code)
}
