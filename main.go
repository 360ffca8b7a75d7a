// Command manager is DistLock's controller.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/distlock-dev/distlock/api/v1alpha1"
	"github.com/distlock-dev/distlock/controllers"
)

// version is set by the linker in a release build.
var version = ""

type options struct {
	leaderElect   bool
	metricsAddr   string
	metricsSecure bool
	probeAddr     string
	zap           zap.Options
}

func main() {
	var o options
	flag.BoolVar(&o.leaderElect, "leader-elect", false, "Elect a leader among the replicas; only the leader acts.")
	flag.StringVar(&o.metricsAddr, "metrics-bind-address", "0", "Address to serve metrics on, such as :8443; 0 serves none.")
	flag.BoolVar(&o.metricsSecure, "metrics-secure", true, "Serve metrics over HTTPS, to authenticated and authorized clients only.")
	flag.StringVar(&o.probeAddr, "health-probe-bind-address", ":8081", "Address to serve /healthz and /readyz on; 0 serves none.")
	showVersion := flag.Bool("version", false, "Print the version and exit.")
	o.zap.BindFlags(flag.CommandLine)
	flag.Parse()
	if *showVersion || flag.Arg(0) == "version" {
		fmt.Println(versionString())
		return
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "manager: unexpected argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.zap)))
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		ctrl.Log.Error(err, "manager stopped")
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	self, err := identity(ctx, config)
	if err != nil {
		return err
	}
	r := controllers.New(clock.RealClock{})
	mgr, err := newManager(config, o, r.CacheOptions())
	if err != nil {
		return err
	}
	if err := r.SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	if err := metrics.Registry.Register(r.Metrics()); err != nil {
		return err
	}
	policies, err := r.WatchPolicies(ctx, mgr, self)
	if err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("caches", cachesSynced(mgr)), mgr.AddReadyzCheck("policies", policies.Ready)); err != nil {
		return err
	}
	ctrl.Log.Info("starting", "version", versionString())
	return mgr.Start(ctx)
}

// identity is this process as the API server knows it, for events: its pod, or
// where it runs in none its service account. It fails unless that is the service
// account that the policies let start Jobs: anybody else would grant locks and
// start nothing.
func identity(ctx context.Context, config *rest.Config) (*corev1.ObjectReference, error) {
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking the API server who this is: %w", err)
	}
	user := review.Status.UserInfo
	if user.Username != v1alpha1.ControllerUser {
		return nil, fmt.Errorf("runs as %q, but the policies let only %q start Jobs: use a kubeconfig of that service account", user.Username, v1alpha1.ControllerUser)
	}
	self := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "ServiceAccount", Namespace: v1alpha1.ControllerNamespace, Name: v1alpha1.ControllerServiceAccount, UID: types.UID(user.UID),
	}
	if pod, uid := user.Extra["authentication.kubernetes.io/pod-name"], user.Extra["authentication.kubernetes.io/pod-uid"]; len(pod) == 1 && len(uid) == 1 {
		self.Kind, self.Name, self.UID = "Pod", pod[0], types.UID(uid[0])
	}
	return self, nil
}

func newManager(config *rest.Config, o options, caches cache.Options) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	config.QPS = -1 // the API server's fairness limits us; a limit here would starve the next grant
	return ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         caches,
		Client:                        controllers.ClientOptions(),
		Metrics:                       metricsOptions(o),
		HealthProbeBindAddress:        o.probeAddr,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "distlock-controller-manager.distlock.dev",
		LeaderElectionNamespace:       v1alpha1.ControllerNamespace,
		LeaderElectionReleaseOnCancel: true, // the process ends when the manager does
	})
}

func metricsOptions(o options) metricsserver.Options {
	m := metricsserver.Options{BindAddress: o.metricsAddr, SecureServing: o.metricsSecure}
	if o.metricsSecure {
		m.FilterProvider = filters.WithAuthenticationAndAuthorization
		m.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} }}
	}
	return m
}

// cachesSynced is ready when the manager has seen the whole cluster once.
func cachesSynced(mgr manager.Manager) healthz.Checker {
	return func(req *http.Request) error {
		if !mgr.GetCache().WaitForCacheSync(req.Context()) {
			return errors.New("the caches have not synced")
		}
		return nil
	}
}

func versionString() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
