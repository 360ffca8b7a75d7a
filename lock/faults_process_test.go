package lock_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

func TestFault12AHolderIsKilled(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	a := startProgram(t, ns, controlPlane.Kubeconfig(), &register{})
	token := a.token()
	q := newProgram(t, ns)
	waiting := acquire(t, q, "ledger")
	q.awaitRequest(t, "WATCH distlocks")
	a.signal(syscall.SIGKILL)
	killed := time.Now()
	next := waiting.result(t)
	must(t, next.err)
	t.Logf("killed with a lease of 3s, the next one was in after %s", next.at.Sub(killed))
	if next.Token() <= token {
		t.Errorf("token %d after %d", next.Token(), token)
	}
	if took := next.at.Sub(killed); took < 2*time.Second || took > 15*time.Second {
		t.Errorf("the next one was in after %s", took)
	}
}

func TestFault13AHolderThatIsStoppedPastItsLeaseWritesNothingMore(t *testing.T) {
	ns := namespace(t)
	lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	var resource register
	a := startProgram(t, ns, controlPlane.Kubeconfig(), &resource)
	token := a.token()
	a.tell("write")
	a.says("200")
	a.signal(syscall.SIGSTOP)
	q := newProgram(t, ns)
	next, err := q.Acquire(t.Context(), "ledger")
	must(t, err)
	must(t, resource.write(next.Token()))
	a.tell("write") // the step that it was about to take
	a.signal(syscall.SIGCONT)
	if said := a.says("2", "409", "stopped"); said != "stopped" && said != "409" {
		t.Errorf("beside the next holder it could write: %s", said)
	}
	a.says("ended DistLock ledger: the hold was lost")
	a.tell("write")
	a.says("stopped")
	a.tell("write!")
	a.says("409")
	if len(resource.written) != 2 || resource.written[0] != token || resource.written[1] != next.Token() {
		t.Errorf("written with %d, the holders had %d and %d", resource.written, token, next.Token())
	}
	must(t, next.Check(t.Context()))
}

func TestFault14AHolderWhoseRenewalsAnswerIsLostGoesOn(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 6})
	proxy := startProxy(t)
	var resource register
	a := startProgram(t, ns, proxy.kubeconfig(t), &resource)
	token := a.token()
	for range 2 { // and again
		proxy.eatAnAnswer()
		<-proxy.eaten // and stored
		last := read(t, l).Status.Holders[0].RenewTime
		until(t, l, "renewed again", func(l *v1alpha1.DistLock) bool { return l.Status.Holders[0].RenewTime.After(last.Time) })
		a.tell("write")
		a.says("200")
	}
	if h := read(t, l).Status.Holders[0]; h.FencingToken != token {
		t.Errorf("held with token %d, and the program has %d", h.FencingToken, token)
	}
	a.tell("release")
	until(t, l, "free", free)
	<-a.Done()
	if a.ExitCode() != 0 {
		t.Errorf("it ended with %d", a.ExitCode())
	}
}

func TestFault15AProgramWhoseAcquiresAnswerIsLostHasOneHold(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{})
	proxy := startProxy(t)
	proxy.eatAnAnswer()
	token := startProgram(t, ns, proxy.kubeconfig(t), &register{}).token()
	<-proxy.eaten
	if s := read(t, l).Status; len(s.Holders) != 1 || s.Holders[0].FencingToken != token || s.FencingToken != token {
		t.Errorf("the program has token %d; stored: %+v", token, s)
	}
}

// It was killed while it waited, outside of any pod: nobody can know.
func TestFault44AWaiterThatIsKilledIsGrantedOnce(t *testing.T) {
	ns := namespace(t)
	l := lockIn(t, ns, "ledger", v1alpha1.DistLockSpec{LeaseDurationSeconds: 3})
	startController(t)
	h, err := newProgram(t, ns).Acquire(t.Context(), "ledger")
	must(t, err)
	a := startProgram(t, ns, controlPlane.Kubeconfig(), &register{})
	until(t, l, "queued", queued(1))
	a.signal(syscall.SIGKILL)
	<-a.Done()
	must(t, h.Release(t.Context()))
	granted := until(t, l, "granted", func(l *v1alpha1.DistLock) bool { return len(l.Status.Holders) == 1 })
	now := until(t, l, "free", free)
	if now.Status.FencingToken != granted.Status.FencingToken {
		t.Errorf("granted again: %+v", now.Status)
	}
	var claims v1alpha1.LockClaimList
	must(t, admin.List(t.Context(), &claims, client.InNamespace(ns)))
	if len(claims.Items) != 0 {
		t.Errorf("left: %+v", claims.Items)
	}
}

// eatingProxy stands between a program and the API server, and eats answers to writes
// of a lock's status: they are stored, and the connection is cut.
type eatingProxy struct {
	url    string
	mu     sync.Mutex
	hungry bool
	eaten  chan struct{}
}

func startProxy(t *testing.T) *eatingProxy {
	t.Helper()
	config := controlPlane.Config()
	target, err := url.Parse(config.Host)
	must(t, err)
	transport, err := rest.TransportFor(config)
	must(t, err)
	p := &eatingProxy{eaten: make(chan struct{}, 10)}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
			answer, err := transport.RoundTrip(req)
			if err == nil && described(req) == "PUT distlocks/status" && p.eats() {
				_ = answer.Body.Close()
				p.eaten <- struct{}{}
				panic(http.ErrAbortHandler)
			}
			return answer, err
		}),
		FlushInterval: -1,
	})
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	p.url = server.URL
	return p
}

func (p *eatingProxy) eatAnAnswer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hungry = true
}

func (p *eatingProxy) eats() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	hungry := p.hungry
	p.hungry = false
	return hungry
}

func (p *eatingProxy) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	k := clientcmdapi.NewConfig()
	k.Clusters["proxy"] = &clientcmdapi.Cluster{Server: p.url}
	k.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "proxy"}
	k.CurrentContext = "proxy"
	must(t, clientcmd.WriteToFile(*k, path))
	return path
}
