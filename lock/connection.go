package lock

import (
	"context"
	"fmt"
	"net"
	"time"

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
	c := &connection{dialer: connrotation.NewDialer(dial), busy: make(chan struct{}, maxRequests)}
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

// ask sends one request and waits so long for its answer. Where none comes the
// connection is taken for dead: the next request dials.
func ask[T any](ctx context.Context, c *connection, patience time.Duration, request func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-bounded.Done():
		var none T
		return none, bounded.Err()
	}
	answer, err := request(bounded)
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
