// Command coupons sells coupons from a stock that several of its processes share, each
// of which reads how many are sold, thinks, and writes. The lock has them take turns;
// the fencing token keeps out the one that stood still while it thought.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "modernc.org/sqlite"

	"github.com/distlock-dev/distlock/fence"
	"github.com/distlock-dev/distlock/lock"
)

const schema = `
CREATE TABLE IF NOT EXISTS stock (id INTEGER PRIMARY KEY, coupons INTEGER NOT NULL, sold INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sales (coupon INTEGER NOT NULL, seller TEXT NOT NULL, token INTEGER NOT NULL);`

// batch is how many one seller sells in one turn.
const batch = 10

var errSoldOut = errors.New("sold out")

type seller struct {
	name  string
	db    *sql.DB
	locks *lock.Client
	think func() // between reading and writing
}

func main() {
	file := flag.String("db", "coupons.db", "SQLite database of the stock")
	name := flag.String("name", "seller", "who sells")
	stop := flag.Bool("stop", false, "stand still, as by SIGSTOP, in the middle of the first sale")
	flag.Parse()
	s := seller{name: *name, think: func() {}}
	if *stop {
		s.think = func() {
			s.think = func() {}
			fmt.Println("stands still")
			standStill()
		}
	}
	ctx, end := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer end()
	if err := s.run(ctx, *file); err != nil {
		log.Fatal(err) //nolint:gocritic // exitAfterDefer: the process ends here
	}
}

// standStill returns when the process has stood still. The signal stops one thread
// after the other: without waiting for what ends it, this one could still write.
func standStill() {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-goesOn
	signal.Stop(goesOn)
}

func (s *seller) run(ctx context.Context, file string) (err error) {
	if s.db, err = sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_txlock=immediate"); err != nil {
		return err
	}
	defer s.db.Close()
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if s.locks, err = lock.NewClient(nil); err != nil {
		return err
	}
	defer s.locks.Close(context.Background())
	for {
		err := s.locks.Do(ctx, "coupons", s.sell, lock.Lease(3*time.Second))
		switch {
		case errors.Is(err, errSoldOut):
			return nil
		case errors.Is(err, fence.ErrStaleToken), errors.Is(err, lock.ErrLost):
			fmt.Println("was too late:", err) // nothing was written; it gets in line again
		case err != nil:
			return err
		}
	}
}

// prepare makes the tables, and a stock of 1,000, if they are not there.
func (s *seller) prepare(ctx context.Context) error {
	if err := fence.SQLite.CreateTable(ctx, s.db); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, schema); err != nil {
		return err
	}
	_, err := s.db.ExecContext(ctx, "INSERT OR IGNORE INTO stock (id, coupons, sold) VALUES (1, 1000, 0)")
	return err
}

// sell is one turn.
func (s *seller) sell(ctx context.Context, h *lock.Hold) error {
	var coupons, sold int
	if err := s.db.QueryRowContext(ctx, "SELECT coupons, sold FROM stock WHERE id = 1").Scan(&coupons, &sold); err != nil {
		return err
	}
	if sold == coupons {
		return errSoldOut
	}
	s.think()
	// Not with ctx: it may have ended while the process stood still, and that is not
	// what this shows. The database says no.
	return s.write(context.WithoutCancel(ctx), h.Token(), sold, min(sold+batch, coupons))
}

// write books the coupons from one number to another. The fence comes first: behind
// it nobody with a greater token has written, or will before this commits.
func (s *seller) write(ctx context.Context, token int64, from, to int) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if err := fence.SQLite.Advance(ctx, tx, "coupons", token); err != nil {
		return err
	}
	for coupon := from + 1; coupon <= to; coupon++ {
		if _, err := tx.ExecContext(ctx, "INSERT INTO sales (coupon, seller, token) VALUES (?, ?, ?)", coupon, s.name, token); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE stock SET sold = ? WHERE id = 1", to); err != nil {
		return err
	}
	return tx.Commit()
}
