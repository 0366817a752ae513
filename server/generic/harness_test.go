package generic_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concord-dev/concord/server/generic"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	// patience is how long a test waits for something expected, on a busy machine.
	patience = 3 * time.Minute
	poll     = 50 * time.Millisecond
)

// allFeatures is an environment variable: with it, all servers of the process have all APIs and features on.
const allFeatures = "CONCORD_TEST_ALL"

// shared is a server for all tests that do not need their own.
var shared *running

func TestMain(m *testing.M) {
	logOnlyDeath()
	process.Serve(map[string]func(context.Context, []string) error{stopWhileStarting: startAndStop})
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "concord-generic")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if shared, err = start(func(o *generic.Options) {
			o.DataDir = dir
			if os.Getenv(allFeatures) == "" {
				return
			}
			fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
			o.AddVersionFlags(fs)
			if err := fs.Parse([]string{"--feature-gates=AllAlpha=true,AllBeta=true,CBORServingAndStorage=false", "--runtime-config=api/all=true"}); err != nil {
				panic(err)
			}
		}); err != nil {
			panic(err)
		}
		code := m.Run()
		if err := shared.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop:", err)
			return 1
		}
		return code
	}())
}

// logOnlyDeath discards what servers log, since errors are returned, but for the last errors before the end
// of the process: a post-start hook that fails (for example because RBAC's roles are not made within 30 s)
// ends the process of an API server, and with it the test.
func logOnlyDeath() {
	var (
		mu   sync.Mutex
		last []string
	)
	klog.SetLogger(funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		if last = append(last, args); len(last) > 20 {
			last = last[1:]
		}
	}, funcr.Options{Verbosity: -1}))
	ctrllog.SetLogger(logr.Discard())
	klog.OsExit = func(code int) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(os.Stderr, "a server ended the process of the test with exit code %d; its last errors:\n%s\n", code, strings.Join(last, "\n"))
		os.Exit(code)
	}
}

// running is a server that a test has started.
type running struct {
	*generic.Server
	admin *rest.Config
	kube  kubernetes.Interface
	stop  func() error
}

// start runs a server on a free port until stop is called, and returns when it is ready.
func start(change func(*generic.Options)) (*running, error) {
	o := generic.NewOptions()
	o.ControlPlane.SecureServing.BindPort = 0
	o.Join.ControllerLeaseDuration = 15 * time.Second // a stop gives it up
	o.Outbound.AllowLoopback = true                   // the backends of Services are on this host
	change(o)
	if err := o.Complete(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	serving, ended := make(chan *generic.Server, 1), make(chan error, 1)
	go func() { ended <- generic.Run(ctx, o, func(s *generic.Server) { serving <- s }) }()
	s := &running{stop: func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the server does not stop")
		}
	}}
	select {
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("the server ended: %w", err)
	case <-time.After(patience):
		cancel()
		return nil, errors.New("the server does not serve")
	case s.Server = <-serving:
	}
	var err error
	if s.admin, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig()); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if s.admin.Host != "https://"+s.Address() {
		return nil, errors.Join(fmt.Errorf("the server says %s, its kubeconfig %s", s.Address(), s.admin.Host), s.stop())
	}
	s.admin.QPS = -1
	s.kube = kubernetes.NewForConfigOrDie(s.admin)
	if err := s.awaitReady(); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *running) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return process.Until(ctx, poll, func(ctx context.Context) error {
		return s.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// startFor runs a server until the test ends.
func startFor(t *testing.T, change func(*generic.Options)) *running {
	t.Helper()
	s, err := start(change)
	mustDo(t, err)
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return s
}

// namespace makes a namespace for a test, and returns when it can be used.
func (s *running) namespace(t *testing.T) string {
	t.Helper()
	ns, err := s.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	mustDo(t, err)
	eventually(t, "the default service account of "+ns.Name, func(ctx context.Context) error {
		_, err := s.kube.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return ns.Name
}

// eventually calls try until it returns nil, and fails the test if that takes too long.
func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := process.Until(ctx, poll, try); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// gone returns nil for a NotFound error.
func gone(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return errors.New("it is still there")
	}
	return err
}

// must returns the value of a call, and ends the test if its error is not nil.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func configMap(name string, data map[string]string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}, Data: data}
}

// mustDo ends the test if err is not nil.
func mustDo(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
