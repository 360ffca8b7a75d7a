package lock_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// network passes requests on as it is told to, and remembers them.
type network struct {
	mu       sync.Mutex
	requests []string
	open     map[string]int // requests under way
	asked    chan struct{}  // closed and made anew with each request
	behaves  behaviour
}

// behaviour answers a request instead of the API server.
type behaviour func(next http.RoundTripper, req *http.Request) (*http.Response, error)

func newNetwork() *network { return &network{asked: make(chan struct{}), open: map[string]int{}} }

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (n *network) pass(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	n.mu.Lock()
	what := described(req)
	n.requests = append(n.requests, what)
	n.open[what]++
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.open[what]--
	}()
	close(n.asked)
	n.asked = make(chan struct{})
	behaves := n.behaves
	n.mu.Unlock()
	if behaves != nil {
		return behaves(next, req)
	}
	return next.RoundTrip(req)
}

// behave has requests answered by f from now on; nil: by the API server.
func (n *network) behave(f behaviour) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.behaves = f
}

// taken returns the requests since the last time.
func (n *network) taken() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := n.requests
	n.requests = nil
	return taken
}

// settled reports whether all requests of a kind were answered.
func (n *network) settled(what string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.open[what] == 0
}

// awaitRequests waits until there were so many of a kind since the requests were taken.
func (n *network) awaitRequests(t *testing.T, what string, times int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		n.mu.Lock()
		asked, requests := n.asked, slices.Clone(n.requests)
		n.mu.Unlock()
		if count(requests, what) >= times {
			return
		}
		select {
		case <-asked:
		case <-ctx.Done():
			t.Fatalf("never %d times %s: %q", times, what, requests)
		}
	}
}

func (n *network) awaitRequest(t *testing.T, what string) {
	t.Helper()
	n.awaitRequests(t, what, 1)
}

func count(requests []string, what string) int {
	c := 0
	for _, r := range requests {
		if r == what {
			c++
		}
	}
	return c
}

// described is a request as "PUT distlocks/status": its verb and what it is about.
func described(req *http.Request) string {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/") // apis/GROUP/VERSION/namespaces/NS/KIND[/NAME[/SUB]]
	what := req.Method
	if req.URL.Query().Get("watch") != "" {
		what = "WATCH"
	}
	if len(parts) > 5 {
		what += " " + parts[5]
	}
	if len(parts) > 7 {
		what += "/" + parts[7]
	}
	return what
}

// unreachable is a network on which nothing arrives.
func unreachable(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// lost loses the requests of a kind, or the answers to them, and nobody is told.
func lost(what string, stored bool) behaviour {
	return only(what, func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if stored {
			_, _ = cut(true)(next, req)
		}
		return unreachable(next, req)
	})
}

// held holds requests up until they are let go on.
func held() (b behaviour, letGo func()) {
	gate := make(chan struct{})
	return func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		select {
		case <-gate:
			return next.RoundTrip(req)
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}, sync.OnceFunc(func() { close(gate) })
}

// refuses is an API server that fails.
func refuses(_ http.RoundTripper, req *http.Request) (*http.Response, error) {
	return answered(req, http.StatusInternalServerError, nil), nil
}

func answered(req *http.Request, code int, header http.Header) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(strings.NewReader("no")), Request: req}
}

// cut cuts the connection before the API server has the request, or before the answer.
func cut(stored bool) behaviour {
	return func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if stored {
			answer, err := next.RoundTrip(req)
			if err != nil {
				return nil, err
			}
			_ = answer.Body.Close()
		}
		return nil, io.ErrUnexpectedEOF
	}
}

// only has one kind of requests behave so, and the others arrive.
func only(what string, b behaviour) behaviour {
	return func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		if described(req) == what {
			return b(next, req)
		}
		return next.RoundTrip(req)
	}
}

// late has a request time out for its sender, and arrive when it is let go; arrived
// has the code of the answer, which nobody gets.
func late() (b behaviour, letGo func(), arrived <-chan int) {
	gate, answers := make(chan struct{}), make(chan int, 1)
	return func(next http.RoundTripper, req *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		passed := req.Clone(context.WithoutCancel(req.Context()))
		passed.Body = io.NopCloser(bytes.NewReader(body))
		go func() {
			<-gate
			answer, err := next.RoundTrip(passed)
			if err != nil {
				answers <- 0
				return
			}
			_ = answer.Body.Close()
			answers <- answer.StatusCode
		}()
		<-req.Context().Done()
		return nil, req.Context().Err()
	}, sync.OnceFunc(func() { close(gate) }), answers
}
