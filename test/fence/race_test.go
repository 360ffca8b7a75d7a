package fence

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/distlock-dev/distlock/fence"
)

const (
	workers = 8
	// attempts of each worker.
	attempts = 40
)

// tokensOnlyRise has many writers with tokens that mostly rise, some of them late,
// and judges by what is stored in the end.
func tokensOnlyRise(t *testing.T, d *database) {
	for _, level := range append(d.levels, sql.LevelDefault) {
		t.Run(level.String(), func(t *testing.T) { race(t, d, level) })
	}
}

func race(t *testing.T, d *database, level sql.IsolationLevel) {
	t.Helper()
	resource := t.Name()
	d.newAccount(t, resource)
	var (
		newest    atomic.Int64
		committed atomic.Int64
		mu        sync.Mutex
		refusals  []fence.StaleTokenError
		all       sync.WaitGroup
	)
	newest.Store(10)
	for range workers {
		all.Go(func() {
			for range attempts {
				token := newest.Add(rand.Int64N(2)) - rand.Int64N(4)
				var stale *fence.StaleTokenError
				switch err := d.transaction(t, level, resource, token, commitMostly); {
				case errors.As(err, &stale):
					mu.Lock()
					refusals = append(refusals, *stale)
					mu.Unlock()
				case err == nil:
					committed.Add(1)
				case !errors.Is(err, errChangedItsMind):
					t.Errorf("token %d: %v", token, err)
				}
			}
		})
	}
	all.Wait()
	written := d.journal(t, resource)
	t.Logf("%d written, %d refused", len(written), len(refusals))
	if int64(len(written)) != committed.Load() || len(written) == 0 || len(refusals) == 0 {
		t.Errorf("%d writes are stored and %d refused, %d were committed", len(written), len(refusals), committed.Load())
	}
	if !slices.IsSorted(written) {
		t.Errorf("written with the tokens %d", written)
	}
	if got := d.mark(t, resource); len(written) > 0 && got != written[len(written)-1] {
		t.Errorf("the mark is %d, the last write had token %d", got, written[len(written)-1])
	}
	for _, r := range refusals {
		if r.Mark <= r.Token || !slices.Contains(written, r.Mark) {
			t.Errorf("%v, which nobody was let through with", &r)
		}
	}
}

var errChangedItsMind = errors.New("rolled back by its own choice")

// commitMostly ends a transaction.
func commitMostly(tx *sql.Tx) error {
	if rand.IntN(8) == 0 {
		return errors.Join(errChangedItsMind, tx.Rollback())
	}
	return tx.Commit()
}

// transaction writes with the token, beginning anew as often as another one is in the
// way.
func (d *database) transaction(t *testing.T, level sql.IsolationLevel, resource string, token int64, end func(*sql.Tx) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := d.once(ctx, level, resource, token, end)
		if err == nil || ctx.Err() != nil || !d.transient(err) {
			return err
		}
	}
}

func (d *database) once(ctx context.Context, level sql.IsolationLevel, resource string, token int64, end func(*sql.Tx) error) error {
	tx, err := d.BeginTx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := d.Advance(ctx, tx, resource, token); err != nil {
		return err
	}
	if err := d.write(ctx, tx, resource, token); err != nil {
		return err
	}
	return end(tx)
}
