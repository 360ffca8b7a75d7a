package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// requestPatience bounds how long an answer is waited for that no lease bounds.
const requestPatience = 10 * time.Second

// Client acquires locks of one namespace. It has two connections to the API server:
// one for the holds it has, which nothing else can hold up, and one for the rest.
// Safe for concurrent use.
type Client struct {
	namespace string
	me        identity
	now       func() instant
	holding   *connection
	asking    *connection
	watches   *watches

	open  context.Context //nolint:containedctx // ends when Close begins
	close context.CancelFunc
	life  context.Context //nolint:containedctx // of the goroutines, which Close ends
	end   context.CancelFunc
	work  sync.WaitGroup

	mu    sync.Mutex
	views map[string]*view
	holds map[*Hold]struct{}
}

// ClientOption changes a Client that is made.
type ClientOption func(*Client)

// Namespace is where the locks are. Without it, it is the pod's own, and outside of
// a pod that of the kubeconfig's current context.
func Namespace(name string) ClientOption { return func(c *Client) { c.namespace = name } }

// NewClient makes a Client. Without a config it takes the service account of its
// pod, and outside of a pod the kubeconfig, as kubectl does. It asks nothing of the
// API server yet. Close it.
func NewClient(config *rest.Config, opts ...ClientOption) (*Client, error) {
	c := &Client{
		me: whoAmI(serviceAccountDir, os.Getenv), now: readClocks,
		views: map[string]*view{}, holds: map[*Hold]struct{}{},
	}
	for _, o := range opts {
		o(c)
	}
	kubeconfig := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil)
	var err error
	if config == nil {
		if config, err = kubeconfig.ClientConfig(); err != nil { // which knows pods, too
			return nil, fmt.Errorf("neither in a pod nor a usable kubeconfig: %w", err)
		}
	}
	if c.namespace == "" {
		c.namespace = c.me.namespace
	}
	if c.namespace == "" {
		if c.namespace, _, err = kubeconfig.Namespace(); err != nil {
			return nil, fmt.Errorf("which namespace? Name it with lock.Namespace: %w", err)
		}
	}
	if bad := validation.IsDNS1123Label(c.namespace); len(bad) > 0 {
		return nil, fmt.Errorf("lock.Namespace: %q: %s", c.namespace, bad[0])
	}
	if c.holding, err = connect(config, c.namespace); err != nil {
		return nil, err
	}
	if c.asking, err = connect(config, c.namespace); err != nil {
		return nil, err
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.open, c.close = context.WithCancel(c.life)
	c.watches = &watches{conn: c.asking, life: c.life, work: &c.work, waiting: map[string]map[*wideWaiter]struct{}{}}
	return c, nil
}

// Close releases the holds that are left, within ctx, ends all that the Client does
// in the background, and closes its connections. What waits in Acquire must have
// been cancelled before. Nothing can be acquired after it.
func (c *Client) Close(ctx context.Context) error {
	c.close()
	c.mu.Lock()
	holds := slices.Collect(maps.Keys(c.holds))
	c.mu.Unlock()
	errs := make([]error, len(holds)+1)
	var releases sync.WaitGroup
	for i, h := range holds {
		releases.Go(func() { errs[i] = h.giveUp(ctx) })
	}
	releases.Wait()
	quiet := make(chan struct{})
	go func() {
		c.work.Wait()
		close(quiet)
	}()
	c.watches.stop()
	select {
	case <-quiet: // claims that were deleted in the background are
	case <-ctx.Done():
		errs[len(holds)] = ctx.Err()
	}
	c.end()
	<-quiet
	c.asking.dialer.CloseAll()
	c.holding.dialer.CloseAll()
	return errors.Join(errs...)
}

var errClosed = errors.New("the lock.Client is closed")

// request makes an acquisition of a lock under a new owner's name.
func (c *Client) request(name string, opts []Option) (*acquisition, error) {
	if c.open.Err() != nil {
		return nil, errClosed
	}
	o, err := optionsOf(opts)
	if err != nil {
		return nil, err
	}
	if bad := validation.IsDNS1123Subdomain(name); len(bad) > 0 {
		return nil, fmt.Errorf("name of the lock: %q: %s", name, bad[0])
	}
	return &acquisition{Client: c, options: o, view: c.view(name), name: name, owner: c.me.newOwner(), ref: c.me.ref(c.namespace)}, nil
}

// view is what is known of a lock.
func (c *Client) view(name string) *view {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.views[name]
	if v == nil {
		c.forgetSome()
		v = newView(c.asking, name, c.now)
		c.views[name] = v
	}
	return v
}

// remembered is how many locks a Client remembers. Forgetting one costs a read, and
// those that use it now go on with what they have.
const remembered = 4096

func (c *Client) forgetSome() {
	for name := range c.views {
		if len(c.views) < remembered {
			return
		}
		delete(c.views, name)
	}
}

// persist does something until it succeeds, whatever the caller's context does. It
// returns when that is done, or after a while, when it goes on in the background.
func (c *Client) persist(ctx context.Context, what func(context.Context) error) {
	timer := time.NewTimer(requestPatience)
	defer timer.Stop()
	select {
	case <-c.inBackground(ctx, c.life, what):
	case <-timer.C:
	}
}

// inBackground does something until it succeeds, is refused for good or life ends, and
// closes done then.
func (c *Client) inBackground(ctx, life context.Context, what func(context.Context) error) (done <-chan struct{}) {
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(life, cancel)
	c.work.Go(func() {
		defer close(ended)
		defer cancel()
		defer stop()
		var no refusals
		for pauses := retryPauses(); ctx.Err() == nil; pause(ctx, pauses.Step()) {
			if err := what(ctx); err == nil || no.final(err, c.now()) {
				return
			}
		}
	})
	return ended
}

// retryPauses are those between tries at an API server that fails.
func retryPauses() wait.Backoff {
	return wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 3 * time.Second}
}

// pause waits, or less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
