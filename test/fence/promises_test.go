package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock-dev/distlock/fence"
)

// promises are what holds on every database.
var promises = []struct {
	name string
	test func(*testing.T, *database)
}{
	{"a lower token is refused, an equal or a greater one passes", aLowerTokenIsRefused},
	{"a refusal names resource, token and mark", aRefusalNamesResourceTokenAndMark},
	{"a refused transaction cannot be committed", aRefusedTransactionCannotBeCommitted},
	{"a transaction that is rolled back leaves the mark where it was", aRollbackLeavesTheMark},
	{"what is no token, or no name, is refused", nonsenseIsRefused},
	{"each name has a mark of its own", eachNameHasItsOwnMark},
	{"a holder paused in its transaction is refused when its successor has written", aPausedHolderIsRefused},
	{"the successor waits for a transaction that was let through", theSuccessorWaits},
	{"different resources do not wait for each other", differentResourcesDoNotWait},
	{"many may create the table at once", manyCreateTheTable},
	{"in any order of commits the tokens of the writes only rise", tokensOnlyRise},
}

func keepsItsPromises(t *testing.T, d *database) {
	t.Helper()
	for _, p := range promises {
		t.Run(p.name, func(t *testing.T) { p.test(t, d) })
	}
}

func aLowerTokenIsRefused(t *testing.T, d *database) {
	const resource = "lower"
	for _, row := range []struct {
		token, mark int64
		stale       bool
	}{
		{7, 7, false}, // the first of all
		{7, 7, false},
		{6, 7, true},
		{7, 7, false}, // a refusal changes nothing
		{9, 9, false},
		{8, 9, true},
		{1, 9, true},
		{1<<53 - 1, 1<<53 - 1, false},
		{1<<53 - 2, 1<<53 - 1, true},
	} {
		if err := d.advance(t, resource, row.token); errors.Is(err, fence.ErrStaleToken) != row.stale || err != nil != row.stale {
			t.Errorf("token %d: %v, want stale: %t", row.token, err, row.stale)
		}
		if got := d.mark(t, resource); got != row.mark {
			t.Errorf("after token %d the mark is %d, want %d", row.token, got, row.mark)
		}
	}
}

func aRefusalNamesResourceTokenAndMark(t *testing.T, d *database) {
	const resource = "named"
	d.passes(t, resource, 307)
	err := d.advance(t, resource, 306)
	var stale *fence.StaleTokenError
	if !errors.As(err, &stale) || *stale != (fence.StaleTokenError{Resource: resource, Token: 306, Mark: 307}) {
		t.Errorf("got %#v", err)
	}
}

func aRefusedTransactionCannotBeCommitted(t *testing.T, d *database) {
	const resource = "refused"
	d.newAccount(t, resource)
	d.passes(t, resource, 5)
	for _, token := range []int64{4, 0} { // stale, and nonsense
		tx := d.begin(t, sql.LevelDefault)
		if err := d.write(t.Context(), tx, resource, token); err != nil {
			t.Fatal(err)
		}
		if err := d.Advance(t.Context(), tx, resource, token); err == nil {
			t.Errorf("token %d passed", token)
		}
		if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("token %d: Commit says %v", token, err)
		}
	}
	if got := d.journal(t, resource); len(got) != 0 {
		t.Errorf("written with tokens %d", got)
	}
}

func aRollbackLeavesTheMark(t *testing.T, d *database) {
	const resource = "rolled back"
	for _, mark := range []int64{0, 3} {
		if mark > 0 {
			d.passes(t, resource, mark)
		}
		tx := d.begin(t, sql.LevelDefault)
		if err := d.Advance(t.Context(), tx, resource, 9); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if got := d.mark(t, resource); got != mark {
			t.Errorf("the mark is %d, want %d", got, mark)
		}
	}
	d.passes(t, resource, 4)
}

func nonsenseIsRefused(t *testing.T, d *database) {
	for _, row := range []struct {
		resource string
		token    int64
		want     string
	}{
		{"nonsense", 0, "0 is not a fencing token"},
		{"nonsense", -7, "-7 is not a fencing token"},
		{"nonsense", 1 << 53, "9007199254740992 is not a fencing token: want 1 to 9007199254740991"},
		{"", 1, "the name of the resource is empty"},
		{strings.Repeat("é", 128), 1, "256 bytes, more than 255"},
		{"a\x00b", 1, "not UTF-8 without NUL"},
		{"a\xff", 1, "not UTF-8 without NUL"},
	} {
		err := d.advance(t, row.resource, row.token)
		if err == nil || !strings.Contains(err.Error(), row.want) || errors.Is(err, fence.ErrStaleToken) {
			t.Errorf("%.10q, token %d: %v, want %q", row.resource, row.token, err, row.want)
		}
	}
	if got := d.mark(t, "nonsense"); got != 0 {
		t.Errorf("the mark is %d", got)
	}
}

func eachNameHasItsOwnMark(t *testing.T, d *database) {
	names := []string{"a", "A", "a ", " a", "á", "a\u0301", "ß", "ss", "a'; DROP TABLE account; --", "%", "_", strings.Repeat("é", 127) + "x"}
	for i, name := range names {
		d.passes(t, name, int64(100-i))
	}
	for i, name := range names {
		if got := d.mark(t, name); got != int64(100-i) {
			t.Errorf("%q: the mark is %d, want %d", name, got, 100-i)
		}
	}
}

// Fault 13, as the database sees it: the transaction began before the successor's,
// also with its snapshot, and goes on after it.
func aPausedHolderIsRefused(t *testing.T, d *database) {
	for _, level := range append(d.levels, sql.LevelDefault) {
		for _, earlier := range []int64{0, 4, 5} { // the mark, when the holder begins
			for _, snapshot := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v, mark %d, snapshot %t", level, earlier, snapshot), func(t *testing.T) {
					pauses(t, d, level, earlier, snapshot)
				})
			}
		}
	}
}

func pauses(t *testing.T, d *database, level sql.IsolationLevel, earlier int64, snapshot bool) {
	t.Helper()
	resource := t.Name()
	d.newAccount(t, resource)
	if earlier > 0 {
		d.passes(t, resource, earlier)
	}
	holder := d.begin(t, level)
	if snapshot {
		var n int
		if err := holder.QueryRowContext(t.Context(), "SELECT count(*) FROM aside").Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	successor := d.begin(t, level)
	if err := errors.Join(d.Advance(t.Context(), successor, resource, 6), d.write(t.Context(), successor, resource, 6), successor.Commit()); err != nil {
		t.Fatal(err)
	}
	err := d.Advance(t.Context(), holder, resource, 5)
	if !errors.Is(err, fence.ErrStaleToken) && (err == nil || !d.transient(err)) {
		t.Errorf("the paused holder got %v", err)
	}
	if err := holder.Commit(); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("its Commit says %v", err)
	}
	if err := d.advance(t, resource, 5); !errors.Is(err, fence.ErrStaleToken) {
		t.Errorf("another transaction of its got %v", err)
	}
}

// Else the successor could commit first, and the write with the lower token after it.
func theSuccessorWaits(t *testing.T, d *database) {
	for _, earlier := range []int64{0, 4, 5} { // at 5 nothing changes in the row
		t.Run(fmt.Sprintf("mark %d", earlier), func(t *testing.T) {
			resource := t.Name()
			d.newAccount(t, resource)
			if earlier > 0 {
				d.passes(t, resource, earlier)
			}
			holder := d.begin(t, sql.LevelDefault)
			if err := d.Advance(t.Context(), holder, resource, 5); err != nil {
				t.Fatal(err)
			}
			impatient, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := d.Advance(impatient, d.begin(t, sql.LevelDefault), resource, 6); err == nil || errors.Is(err, fence.ErrStaleToken) {
				t.Errorf("the successor got %v while the holder's transaction is open", err)
			}
			passed := make(chan error)
			go func() { passed <- d.transaction(t, sql.LevelDefault, resource, 6, (*sql.Tx).Commit) }()
			if err := errors.Join(d.write(t.Context(), holder, resource, 5), holder.Commit(), <-passed); err != nil {
				t.Error(err)
			}
			if got := fmt.Sprint(d.journal(t, resource)); got != "[5 6]" {
				t.Errorf("written in the order %s", got)
			}
		})
	}
}

func differentResourcesDoNotWait(t *testing.T, d *database) {
	if d.oneWriter {
		t.Skip("this database has one writer at a time")
	}
	for _, known := range []bool{false, true} {
		for i := range 5 {
			resource := fmt.Sprintf("apart %t %d", known, i)
			if known {
				d.passes(t, resource, 1)
			}
			// Each stays open while the next ones go on.
			if err := d.Advance(t.Context(), d.begin(t, sql.LevelDefault), resource, 2); err != nil {
				t.Error(err)
			}
		}
	}
}

func manyCreateTheTable(t *testing.T, d *database) {
	d.exec(t, "DROP TABLE distlock_fence")
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			if err := d.CreateTable(t.Context(), d.DB); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	d.passes(t, "created", 1)
	if err := d.CreateTable(t.Context(), d.DB); err != nil {
		t.Error(err)
	}
	if got := d.mark(t, "created"); got != 1 {
		t.Errorf("the mark is %d: is it another table?", got)
	}
}
