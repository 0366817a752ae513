// Package fakeapi wraps controller-runtime's fake client for tests that check which calls are made, let some
// of them fail, or change objects between two of them.
package fakeapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/listwatch/replay"
)

// Config says what an API serves.
type Config struct {
	// Types add API types to the scheme; Statuses are the types that have a status subresource.
	Types    []func(*runtime.Scheme) error
	Statuses []client.Object
	// Unnamed says that calls are recorded as "get Lease", not as "get Lease apiserver-a".
	Unnamed bool
	// Ignored are verbs whose calls are neither recorded nor made to fail, like calls of Raw.
	Ignored []string
	// Conditional says that a test fails if it deletes an object without a uid precondition.
	Conditional bool
	// Clock, if not nil, gives the creationTimestamp of created objects.
	Clock clock.PassiveClock
	// UpdateStatus, if not nil, replaces the fake client's update of a status, to do what the real API server
	// does there.
	UpdateStatus func(context.Context, client.Client, client.Object, ...client.SubResourceUpdateOption) error
}

// API is a fake API. It sets uids, and its watches begin with the objects that exist (package replay).
type API struct {
	client.WithWatch
	// Raw is the same API, but its calls are not recorded and Before and After are not called.
	Raw client.WithWatch

	t      testing.TB
	config Config
	uids   int

	Mu sync.Mutex // guards the fields below
	// Calls are the calls so far: verb, kind and name, as in "update status StorageVersion core.secrets".
	Calls []string
	// Before runs before a call, and its error is the answer instead. After runs when a call was answered, and
	// its error replaces the answer.
	Before, After func(call string) error
}

// New returns an API without objects.
func New(t testing.TB, config Config) *API {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range config.Types {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	a := &API{t: t, config: config}
	a.Raw = fake.NewClientBuilder().WithScheme(scheme).WithGlobalResourceVersionCounter().WithStatusSubresource(config.Statuses...).
		WithInterceptorFuncs(interceptor.Funcs{Watch: replay.Watch}).Build()
	a.WithWatch = interceptor.NewClient(a.Raw, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return a.call("get", o, key.Name, func() error {
				if strings.Contains(key.Name, "/") {
					return fmt.Errorf("invalid resource name %q", key.Name) // as client-go does
				}
				return c.Get(ctx, key, o, opts...)
			})
		},
		List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
			return a.call("list", o, "", func() error { return c.List(ctx, o, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return a.call("create", o, o.GetName(), func() error { return a.create(ctx, c, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return a.call("update", o, o.GetName(), func() error { return c.Update(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return a.delete(ctx, c, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return a.call("update "+sub, o, o.GetName(), func() error {
				if config.UpdateStatus != nil {
					return config.UpdateStatus(ctx, c, o, opts...)
				}
				return c.SubResource(sub).Update(ctx, o, opts...)
			})
		},
	})
	return a
}

func (a *API) create(ctx context.Context, c client.Client, o client.Object, opts ...client.CreateOption) error {
	if o.GetUID() == "" {
		a.Mu.Lock()
		a.uids++
		o.SetUID(types.UID(fmt.Sprintf("%08x-uid", a.uids)))
		a.Mu.Unlock()
	}
	if a.config.Clock != nil {
		o.SetCreationTimestamp(metav1.NewTime(a.config.Clock.Now()))
	}
	return c.Create(ctx, o, opts...)
}

// delete checks the uid precondition; controller-runtime's fake client checks only the resourceVersion.
func (a *API) delete(ctx context.Context, c client.Client, o client.Object, opts ...client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	name, uid := o.GetName(), (*types.UID)(nil)
	if p := options.Preconditions; p != nil && p.UID != nil {
		uid = p.UID
		name += fmt.Sprintf(" if uid=%s and it is unchanged=%t", *uid, p.ResourceVersion != nil)
	}
	return a.call("delete", o, name, func() error {
		if uid == nil && a.config.Conditional {
			a.t.Errorf("%T %s is deleted without a uid precondition", o, o.GetName())
			return nil
		}
		if uid != nil {
			stored := o.DeepCopyObject().(client.Object)
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), stored); err != nil {
				return err
			}
			if stored.GetUID() != *uid {
				return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("another uid"))
			}
		}
		return c.Delete(ctx, o, opts...)
	})
}

func (a *API) call(verb string, o any, name string, do func() error) error {
	if slices.Contains(a.config.Ignored, verb) {
		return do()
	}
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", o), ".")
	call := verb + " " + kind
	if name != "" && !a.config.Unnamed {
		call += " " + name
	}
	if err := a.Note(call); err != nil {
		return err
	}
	err := do()
	a.Mu.Lock()
	after := a.After
	a.Mu.Unlock()
	if after != nil {
		if lost := after(call); lost != nil {
			return lost
		}
	}
	return err
}

// Note records a call, which may be one of something else than this API, and returns the error of Before for it.
func (a *API) Note(call string) error {
	a.Mu.Lock()
	a.Calls = append(a.Calls, call)
	before := a.Before
	a.Mu.Unlock()
	if before == nil {
		return nil
	}
	return before(call)
}

// of reports whether call is one of these calls: these is a verb and a kind ("get Lease"), or also a name.
func of(call, these string) bool { return call == these || strings.HasPrefix(call, these+" ") }

// Fail makes these calls fail with err, until Before is set to something else.
func (a *API) Fail(these string, err error) {
	a.Before = func(call string) error {
		if of(call, these) {
			return err
		}
		return nil
	}
}

// Once runs f before the next of these calls.
func (a *API) Once(these string, f func()) {
	a.Before = func(call string) error {
		if of(call, these) {
			a.Before = nil
			f()
		}
		return nil
	}
}

// Quietly runs f; calls in it are not recorded, and Before and After are not called.
func (a *API) Quietly(f func()) {
	a.Mu.Lock()
	calls, before, after := a.Calls, a.Before, a.After
	a.Before, a.After = nil, nil
	a.Mu.Unlock()
	f()
	a.Mu.Lock()
	a.Calls, a.Before, a.After = calls, before, after
	a.Mu.Unlock()
}

// Took returns the calls since Took was called last, with semicolons between.
func (a *API) Took() string {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	calls := strings.Join(a.Calls, "; ")
	a.Calls = nil
	return calls
}

// Eventually waits for a condition that another goroutine brings about.
func (a *API) Eventually(what string, condition func() bool) {
	a.t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 2*time.Millisecond, 2*time.Minute, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		a.t.Fatalf("never: %s", what)
	}
}
