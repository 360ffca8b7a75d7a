package main

import (
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy is the way to the API server, which can be cut: from then on nothing gets
// through, and nobody is told.
type proxy struct {
	url string

	mu    sync.Mutex
	off   bool
	conns []net.Conn
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	to, err := url.Parse(server)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{url: "https://" + l.Addr().String()}
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.conns {
			_ = c.Close()
		}
	})
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			p.connect(from, to.Host)
		}
	}()
	return p
}

func (p *proxy) connect(from net.Conn, to string) {
	server, err := net.Dial("tcp", to)
	if err != nil {
		_ = from.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, from, server)
	p.mu.Unlock()
	go p.pass(from, server)
	go p.pass(server, from)
}

func (p *proxy) pass(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && !p.isOff() {
			_, _ = to.Write(buffer[:n])
		}
		if errors.Is(err, io.EOF) && !p.isOff() {
			_ = to.Close()
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) isOff() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.off
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.off = true
}
