package main

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"
)

// lineReader reads what a command prints while it runs.
type lineReader struct {
	lines chan string
	seen  []string
}

func newLineReader(r io.Reader) *lineReader {
	l := &lineReader{lines: make(chan string, 1000)}
	go func() {
		defer close(l.lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			l.lines <- s.Text()
		}
	}()
	return l
}

// until returns the next line that has all of some texts.
func (l *lineReader) until(t *testing.T, texts ...string) string {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
next:
	for {
		select {
		case line, more := <-l.lines:
			if !more {
				t.Fatalf("ended without a line with %q; printed:\n%s", texts, strings.Join(l.seen, "\n"))
			}
			l.seen = append(l.seen, line)
			for _, s := range texts {
				if !strings.Contains(line, s) {
					continue next
				}
			}
			return line
		case <-limit.C:
			t.Fatalf("no line with %q; printed:\n%s", texts, strings.Join(l.seen, "\n"))
		}
	}
}
