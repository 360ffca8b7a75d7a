package lock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/distlock-dev/distlock/api/v1alpha1"
)

// dialing bounds how long a connection takes to come up.
const dialing = 5 * time.Second

// An API server takes 100 requests at a time over one HTTP/2 connection; for the
// next one client-go would make another. So many may be watches on one lock each,
// and so many other requests.
const (
	maxWatches  = 48
	maxRequests = 48
)

// connection is a TCP connection to the API server of its own, and what is asked
// for over it. It has no limit of requests in a second: the API server has one that
// knows better.
type connection struct {
	dialer *connrotation.Dialer
	busy   chan struct{} // one for each request that is under way
	first  chan struct{} // held by the one that goes alone
	up     atomic.Bool   // something was answered since a connection was opened or closed last
	locks  *gentype.Client[*v1alpha1.DistLock]
	claims *gentype.Client[*v1alpha1.LockClaim]
}

func connect(config *rest.Config, namespace string) (*connection, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, v1alpha1.GroupVersion)

	config = rest.CopyConfig(config)
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialing, KeepAlive: 30 * time.Second}).DialContext
	}
	c := &connection{busy: make(chan struct{}, maxRequests), first: make(chan struct{}, 1)}
	c.dialer = connrotation.NewDialer(c.watchOver(dial))
	config.Dial = c.dialer.DialContext // client-go keeps one connection for each dialer
	config.QPS, config.RateLimiter, config.Timeout = -1, nil, 0
	config.GroupVersion, config.APIPath = &v1alpha1.GroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentConfig.ContentType, config.ContentConfig.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	r, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("a client of the API server at %s: %w", config.Host, err)
	}
	codec := runtime.NewParameterCodec(scheme)
	c.locks = gentype.NewClient("distlocks", r, codec, namespace, func() *v1alpha1.DistLock { return &v1alpha1.DistLock{} })
	c.claims = gentype.NewClient("lockclaims", r, codec, namespace, func() *v1alpha1.LockClaim { return &v1alpha1.LockClaim{} })
	return c, nil
}

// watchOver notes when a connection comes and goes.
func (c *connection) watchOver(dial connrotation.DialFunc) connrotation.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c.up.Store(false)
		return &watchedConn{conn, &c.up}, nil
	}
}

type watchedConn struct {
	net.Conn
	up *atomic.Bool
}

// Close implements net.Conn.
func (w *watchedConn) Close() error {
	w.up.Store(false)
	return w.Conn.Close()
}

// turn waits so long until a request may be sent, and returns what to call after it.
// While no connection is up, they go one at a time: each would dial.
func (c *connection) turn(ctx context.Context, patience time.Duration) (done func(), err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	if err := enter(ctx, c.busy, timer); err != nil {
		return nil, err
	}
	if c.up.Load() {
		return func() { <-c.busy }, nil
	}
	if err := enter(ctx, c.first, timer); err != nil {
		<-c.busy
		return nil, err
	}
	if c.up.Load() {
		<-c.first
		return func() { <-c.busy }, nil
	}
	return func() { <-c.first; <-c.busy }, nil
}

func enter(ctx context.Context, room chan<- struct{}, timer *time.Timer) error {
	select {
	case room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return errNoAnswer
	}
}

// answered takes in how a request ended.
func (c *connection) answered(err error) {
	if status := apierrors.APIStatus(nil); err == nil || errors.As(err, &status) {
		c.up.Store(true)
	}
}

// ask sends one request, for which it may have to wait its turn so long, and waits as
// long for its answer. Where none comes the connection is taken for dead: the next
// request dials.
func ask[T any](ctx context.Context, c *connection, patience time.Duration, request func(context.Context) (T, error)) (T, error) {
	done, err := c.turn(ctx, patience)
	if err != nil {
		var none T
		return none, err
	}
	defer done()
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := request(bounded)
	c.answered(err)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		c.dialer.CloseAll()
	}
	return answer, err
}

func (c *connection) get(ctx context.Context, name string, patience time.Duration) (*v1alpha1.DistLock, error) {
	return ask(ctx, c, patience, func(ctx context.Context) (*v1alpha1.DistLock, error) {
		return c.locks.Get(ctx, name, metav1.GetOptions{})
	})
}

// store replaces the status of a lock as it was read, guarded by its
// resourceVersion (L3), and returns what was stored.
func (c *connection) store(ctx context.Context, read *v1alpha1.DistLock, status v1alpha1.DistLockStatus, patience time.Duration) (*v1alpha1.DistLock, error) {
	l := &v1alpha1.DistLock{
		ObjectMeta: metav1.ObjectMeta{Namespace: read.Namespace, Name: read.Name, UID: read.UID, ResourceVersion: read.ResourceVersion},
		Spec:       read.Spec,
		Status:     status,
	}
	return ask(ctx, c, patience, func(ctx context.Context) (*v1alpha1.DistLock, error) {
		return c.locks.UpdateStatus(ctx, l, metav1.UpdateOptions{})
	})
}
