package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// One in so many requests meets a fault, and one in so many watches is cut or lags.
const (
	oneRequestIn = 25
	oneWatchIn   = 2
	longestLag   = 5 * time.Second
)

// proxy stands between the replicas and the API server, and is where that, or the
// network, fails.
type proxy struct {
	server    *httptest.Server
	forward   *httputil.ReverseProxy
	transport http.RoundTripper
	target    *url.URL
	noLeases  bool // nobody behind it becomes the leader

	*dice
	late sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int
}

func newProxy(config *rest.Config, d *dice, noLeases bool) (*proxy, error) {
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(config)) // the replicas' tokens pass through
	if err != nil {
		return nil, err
	}
	p := &proxy{
		transport: transport, target: target, noLeases: noLeases, dice: d, counts: map[string]int{},
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: p.spoilWatch,
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	p.server = httptest.NewUnstartedServer(p)
	p.server.Config.ErrorLog = p.forward.ErrorLog
	p.server.EnableHTTP2 = true
	p.server.StartTLS()
	return p, nil
}

// stop returns when the late requests are through, too.
func (p *proxy) stop() {
	p.server.CloseClientConnections()
	p.server.Close()
	p.late.Wait()
}

// kubeconfig rewrites a kubeconfig so that it leads here.
func (p *proxy) kubeconfig(direct, dir, name string) (string, error) {
	k, err := clientcmd.LoadFromFile(direct)
	if err != nil {
		return "", err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	for _, c := range k.Clusters {
		*c = clientcmdapi.Cluster{Server: p.server.URL, CertificateAuthorityData: ca}
	}
	path := filepath.Join(dir, "kubeconfig-"+name)
	return path, clientcmd.WriteToFile(*k, path)
}

// ServeHTTP forwards a request, or not.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case p.noLeases && r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/leases"):
		answer(w, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "leader", fmt.Errorf("this replica stays a standby")))
	case isWatch(r) || !p.oneIn(oneRequestIn):
		p.forward.ServeHTTP(w, r)
	default:
		p.fail(w, r)
	}
}

// fail is one of the ways in which a request can fail.
func (p *proxy) fail(w http.ResponseWriter, r *http.Request) {
	faults := []string{"429", "500", "503", "cut before", "cut after", "late reply", "late request"}
	if r.Method == http.MethodPut {
		faults = append(faults, "409")
	}
	fault := faults[p.upTo(len(faults))]
	p.count(fault)
	switch fault {
	case "409":
		answer(w, apierrors.NewConflict(schema.GroupResource{Resource: "any"}, "any", fmt.Errorf("injected")))
	case "429":
		w.Header().Set("Retry-After", "1")
		answer(w, apierrors.NewTooManyRequests("injected", 1))
	case "500":
		answer(w, apierrors.NewInternalError(fmt.Errorf("injected")))
	case "503":
		answer(w, apierrors.NewServiceUnavailable("injected"))
	case "cut before":
		pause(r.Context(), p.duration(time.Second))
		panic(http.ErrAbortHandler)
	case "cut after":
		_ = p.detached(r)(0)
		panic(http.ErrAbortHandler)
	case "late reply":
		pause(r.Context(), p.duration(3*time.Second)) // before it is forwarded, which is as late
		p.forward.ServeHTTP(w, r)
	case "late request":
		send, delay := p.detached(r), p.duration(20*time.Second)
		p.late.Go(func() { _ = send(delay) })
		answer(w, apierrors.NewTimeoutError("injected: it is done nevertheless, later", 0))
	}
}

// detached returns how to send a request after a while although its client has
// gone.
func (p *proxy) detached(r *http.Request) func(after time.Duration) error {
	body, err := io.ReadAll(r.Body)
	ctx := context.WithoutCancel(r.Context())
	request := r.Clone(ctx)
	request.URL.Scheme, request.URL.Host, request.Host, request.RequestURI = p.target.Scheme, p.target.Host, "", ""
	request.Body = io.NopCloser(bytes.NewReader(body))
	return func(after time.Duration) error {
		if err != nil {
			return err
		}
		pause(ctx, after)
		response, err := p.transport.RoundTrip(request)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, response.Body)
		return response.Body.Close()
	}
}

// spoilWatch cuts a watch after a while, or makes it lag.
func (p *proxy) spoilWatch(r *http.Response) error {
	if !isWatch(r.Request) || !p.oneIn(oneWatchIn) {
		return nil
	}
	if p.oneIn(2) {
		p.count("watch cut")
		body := r.Body
		timer := time.AfterFunc(5*time.Second+p.duration(55*time.Second), func() { _ = body.Close() })
		r.Body = endingBody{body, timer}
		return nil
	}
	p.count("watch that lags")
	r.Body = &laggingBody{r.Body, p, r.Request.Context(), time.Now().Add(longestLag)}
	return nil
}

type endingBody struct {
	io.ReadCloser
	timer *time.Timer
}

func (b endingBody) Close() error {
	b.timer.Stop()
	return b.ReadCloser.Close()
}

// laggingBody now and then hands out what came only seconds later. In between it
// catches up.
type laggingBody struct {
	io.ReadCloser
	proxy *proxy
	ctx   context.Context //nolint:containedctx // that of the request whose body it is
	next  time.Time
}

func (b *laggingBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if time.Now().After(b.next) {
		pause(b.ctx, b.proxy.duration(longestLag))
		b.next = time.Now().Add(b.proxy.duration(10 * longestLag))
	}
	return n, err
}

// cutAll breaks every connection.
func (p *proxy) cutAll() {
	p.count("all connections cut")
	p.server.CloseClientConnections()
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

func answer(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *proxy) count(fault string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[fault]++
}

// injected is how many faults there were, in all and by kind.
func injected(proxies ...*proxy) (int, string) {
	sum, counts := 0, map[string]int{}
	for _, p := range proxies {
		p.mu.Lock()
		for fault, n := range p.counts {
			counts[fault] += n
			sum += n
		}
		p.mu.Unlock()
	}
	var parts []string
	for _, fault := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", fault, counts[fault]))
	}
	return sum, strings.Join(parts, ", ")
}
