package examples

import (
	"bufio"
	"database/sql"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"
)

// Ten sellers, one of which stands still in the middle of a sale until others have
// sold what it was about to.
func TestOfAThousandCouponsNeverOneTooManyIsSold(t *testing.T) {
	ns := namespace(t, "coupons/lock.yaml")
	file := filepath.Join(t.TempDir(), "coupons.db")
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(60000)")
	must(t, err)
	defer db.Close()
	run := func(args ...string) *exec.Cmd {
		return in(t, ns, filepath.Join(programs, "coupons"), append([]string{"-db", file}, args...)...)
	}

	still := run("-name", "still", "-stop")
	said, err := still.StdoutPipe()
	must(t, err)
	must(t, still.Start())
	t.Cleanup(func() { _ = still.Process.Kill() })
	lines := bufio.NewScanner(said)
	if !lines.Scan() || lines.Text() != "stands still" {
		t.Fatalf("it said %q: %v", lines.Text(), lines.Err())
	}
	var sellers sync.WaitGroup
	for i := range 9 {
		cmd := run("-name", fmt.Sprint("seller-", i))
		sellers.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("seller %d: %v: %s", i, err, out)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		sellers.Wait()
		close(ended)
	}()
	for sold := 0; sold < 100; {
		select {
		case <-ended:
			t.Fatalf("the others have ended, with %d sold", sold)
		case <-time.After(10 * time.Millisecond):
		}
		must(t, db.QueryRowContext(t.Context(), "SELECT sold FROM stock").Scan(&sold))
	}
	must(t, still.Process.Signal(syscall.SIGCONT)) // in the midst of their sales
	var late []string
	for lines.Scan() {
		late = append(late, lines.Text())
	}
	if said := strings.Join(late, "\n"); !strings.HasPrefix(said, "was too late:") || !strings.Contains(said, "stale fencing token") {
		t.Errorf("the one that stood still said %q", said)
	}
	must(t, still.Wait())
	<-ended

	var sold, sales, coupons, sellersSeen int
	must(t, db.QueryRowContext(t.Context(), "SELECT sold FROM stock").Scan(&sold))
	must(t, db.QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT coupon), count(DISTINCT seller) FROM sales").Scan(&sales, &coupons, &sellersSeen))
	if sold != 1000 || sales != 1000 || coupons != 1000 || sellersSeen < 2 {
		t.Errorf("%d sold, by %d sales of %d coupons by %d sellers; want 1000 each", sold, sales, coupons, sellersSeen)
	}
	var passed int
	must(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM sales a JOIN sales b ON a.rowid + 1 = b.rowid WHERE b.token < a.token`).Scan(&passed))
	if passed > 0 {
		t.Errorf("%d writes with a token lower than that of the write before", passed)
	}
}
