package controllers_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/controllers"
	"github.com/distlock-dev/distlock/test/env"
)

// instance is a controller as a process would run it, for one namespace, with a
// network of its own that a test can disturb.
type instance struct {
	*network
	mgr     ctrl.Manager
	metrics prometheus.Collector
	ctx     context.Context // the process's life
	stop    context.CancelFunc
	done    chan struct{}
}

// settings of an instance that a test may change.
type settings struct {
	ctrl.Options
	clock  clock.PassiveClock
	hidden map[string]string // objects that no LIST or WATCH shows, by resource
}

func startController(t *testing.T, ns string, change ...func(*settings)) *instance {
	t.Helper()
	i := newController(t, ns, change...)
	i.start(t)
	awaitAnswer(t, ns)
	return i
}

// newController makes an instance that has not started.
func newController(t *testing.T, ns string, change ...func(*settings)) *instance {
	t.Helper()
	i := &instance{network: &network{watching: map[string]*gate{}, open: map[string][]*gatedBody{}}, done: make(chan struct{})}
	cfg := rest.CopyConfig(controllerConfig)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { i.next = rt; return i.network })
	s := settings{clock: clock.RealClock{}, Options: ctrl.Options{
		Scheme: env.Scheme(), Client: controllers.ClientOptions(),
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: new(true)},
	}}
	for _, f := range change {
		f(&s)
	}
	i.hidden = s.hidden
	r := controllers.New(s.clock)
	s.Cache = r.CacheOptions()
	s.Cache.DefaultNamespaces = map[string]cache.Config{ns: {}}
	var err error
	i.mgr, err = ctrl.NewManager(cfg, s.Options)
	must(t, err)
	i.ctx, i.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(i.stop)
	must(t, r.SetupWithManager(i.ctx, i.mgr))
	i.metrics = r.Metrics()
	return i
}

// start runs the instance until it is killed, or the test ends.
func (i *instance) start(t *testing.T) {
	t.Cleanup(i.kill)
	go func() {
		defer close(i.done)
		if err := i.mgr.Start(i.ctx); err != nil && !i.isCut() {
			t.Errorf("controller: %v", err)
		}
	}()
}

// awaitAnswer waits until a controller works in the namespace: from then on it
// sees what is created in the order of creation.
func awaitAnswer(t *testing.T, ns string) {
	t.Helper()
	asked := &v1alpha1.LockClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "started-"},
		Spec:       v1alpha1.LockClaimSpec{LockName: "there-is-none"},
	}
	must(t, admin.Create(t.Context(), asked))
	must(t, admin.Delete(t.Context(), untilClaim(t, asked, v1alpha1.ReasonLockNotFound)))
}

// kill ends the controller as SIGKILL does: from this moment no request of it
// reaches the API server.
func (i *instance) kill() {
	i.cut()
	i.stop()
	<-i.done
}

// network is a process's way to the API server.
type network struct {
	next http.RoundTripper

	mu       sync.Mutex
	off      bool
	hooks    []func(*http.Request)
	replies  []func(*http.Request, int)
	watching map[string]*gate        // by resource
	open     map[string][]*gatedBody // watches, by resource
	instead  func(*http.Request) *http.Response
	hidden   map[string]string
}

var errCut = errors.New("the network is cut")

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	n.mu.Lock()
	hooks, instead := n.hooks, n.instead
	n.mu.Unlock()
	for _, f := range hooks {
		f(req)
	}
	if n.isCut() {
		return nil, errCut
	}
	if instead != nil {
		if resp := instead(req); resp != nil {
			return resp, nil
		}
	}
	resp, err := n.next.RoundTrip(n.blinded(req))
	if err == nil {
		n.answered(req, resp.StatusCode)
	}
	if err == nil && n.isCut() {
		return nil, errors.Join(errCut, resp.Body.Close()) // the reply is lost
	}
	if err == nil && req.URL.Query().Get("watch") != "" {
		body := &gatedBody{ReadCloser: resp.Body, gate: n.gate(resourceOf(req))}
		resp.Body = body
		n.mu.Lock()
		n.open[resourceOf(req)] = append(n.open[resourceOf(req)], body)
		n.mu.Unlock()
	}
	return resp, err
}

// resourceOf is the last part of a request's path.
func resourceOf(req *http.Request) string {
	return req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
}

func (n *network) cut() {
	n.mu.Lock()
	n.off = true
	n.mu.Unlock()
}

func (n *network) isCut() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.off
}

// holdUp stops the first request that matches, before it is sent, and says so on
// the channel; it is sent when the returned function is called.
func (n *network) holdUp(match func(*http.Request) bool) (reached <-chan struct{}, letGo func()) {
	at, free := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hooks = append(n.hooks, func(req *http.Request) {
		if match(req) && first.CompareAndSwap(false, true) {
			close(at)
			<-free
		}
	})
	return at, sync.OnceFunc(func() { close(free) })
}

func writes(method, part string) func(*http.Request) bool {
	return func(req *http.Request) bool { return req.Method == method && strings.Contains(req.URL.Path, part) }
}

// gate of a resource's watches: while it is shut no event comes through.
func (n *network) gate(resource string) *gate {
	n.mu.Lock()
	defer n.mu.Unlock()
	g, ok := n.watching[resource]
	if !ok {
		g = &gate{}
		n.watching[resource] = g
	}
	return g
}

type gate struct{ sync.RWMutex }

type gatedBody struct {
	io.ReadCloser
	gate  *gate
	ended atomic.Bool
}

// end is the end of the stream as the API server brings it about when a watch's
// time is up.
func (b *gatedBody) end() {
	b.ended.Store(true)
	_ = b.Close()
}

func (b *gatedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.ended.Load() {
		err = io.EOF
	}
	b.gate.RLock() // an event that has arrived is delivered when the gate opens
	defer b.gate.RUnlock()
	return n, err
}

// answers sends the answer's code to the next request in flight that matches.
func (n *network) answers(match func(*http.Request) bool) <-chan int {
	c := make(chan int, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.replies = append(n.replies, func(req *http.Request, code int) {
		if match(req) {
			select {
			case c <- code:
			default:
			}
		}
	})
	return c
}

func (n *network) answered(req *http.Request, code int) {
	n.mu.Lock()
	replies := n.replies
	n.mu.Unlock()
	for _, f := range replies {
		f(req, code)
	}
}
