package main

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// wire counts the watches of some clients, on their connections.
type wire struct {
	watches atomic.Int64 // that have begun
	events  atomic.Int64 // that they have brought
}

// onWire has a client's watches counted, and gives its requests a name.
func (w *wire) onWire(config *rest.Config, agent string) *rest.Config {
	config.UserAgent = agent + "/1"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return countingTransport{w, next} })
	return config
}

type countingTransport struct {
	*wire
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t countingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err == nil && req.URL.Query().Has("watch") && resp.StatusCode == http.StatusOK {
		t.watches.Add(1)
		resp.Body = countingBody{resp.Body, &t.events}
	}
	return resp, err
}

// countingBody counts the events of a watch in JSON: each ends with a newline, and has
// no other.
type countingBody struct {
	io.ReadCloser
	events *atomic.Int64
}

// Read implements io.Reader.
func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.events.Add(int64(bytes.Count(p[:n], []byte{'\n'})))
	return n, err
}
