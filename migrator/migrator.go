// Package migrator has an operator migrate the stored objects of its own
// CustomResourceDefinitions, beside stock kube-apiservers, in place of a migrator that it would
// have to write itself. It needs no other program, and nothing in the cluster.
//
// When a definition's status.storedVersions names more than the version that is to be stored,
// every kube-apiserver is asked what it stores; when all have stored that version for a while,
// all objects are written anew by empty patches, more of these prove through every
// kube-apiserver that nothing else is stored, and storedVersions is set. docs/stock.md says how,
// what is promised, what the operator must be allowed to do, and what a test with envtest needs.
package migrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/concord-dev/concord/stock"
	"github.com/concord-dev/concord/stock/observed"
)

// Never, as Options.PruneAfter, leaves storedVersions as they are.
const Never = observed.Never

// Options say what is migrated. The zero value of a field other than CRDs is its default.
type Options struct {
	// CRDs are names of CustomResourceDefinitions, such as "widgets.example.com". At the start the log and Changed
	// name those that do not exist; they wait until they exist. A name given twice counts once.
	CRDs []string
	// PruneAfter is how long storedVersions keeps a version after the proof that nothing is
	// stored in it. Default: not at all. The annotations concord.dev/prune and
	// concord.dev/hold of a definition go before it.
	PruneAfter time.Duration
	// MaxObjectsPerSecond bounds how many objects are patched, those of all definitions together. Default: no bound.
	MaxObjectsPerSecond int64
	// VerifyAll has the proof patch every object, and not a sample of 1,000.
	VerifyAll bool
	// BestEffort says that kube-apiservers cannot be asked one by one: the answer of one counts for all, and
	// storedVersions is set only when the annotation concord.dev/prune says so: without it a definition is migrated, and
	// never done.
	BestEffort bool
	// Settle is for how long all kube-apiservers have to store a version before that counts. It
	// is longer than their --request-timeout. Default: 75 s.
	Settle time.Duration
	// Poll is how often they are asked while something is waited for. Default: 10 s.
	Poll time.Duration
	// Changed, if not nil, is called when a definition is done, when its objects are being migrated, when it waits for
	// something else, and when an error stands in the way, for example an object that cannot be written, a conversion
	// webhook that does not answer, or a definition that does not exist. It is called by one goroutine at a time.
	Changed func(crd string, s Standing)
}

// Standing is how far a definition is.
type Standing = stock.Standing

const (
	// name is that of the controller.
	name = "concord-migrator"
	// atATime is how many definitions are migrated at a time, so that a definition whose conversion webhook hangs does
	// not block the others. Each migration gives way to clients by itself: more at a time are more load.
	atATime = 2
	// shortest is the least PruneAfter, Settle and Poll: a shorter duration is almost certainly a bare number, which Go reads as
	// nanoseconds.
	shortest = time.Millisecond
)

// validate says which option is wrong.
func (o Options) validate() error {
	if len(o.CRDs) == 0 {
		return errors.New("a migrator needs the name of a CustomResourceDefinition")
	}
	for _, crd := range o.CRDs {
		if why := validation.IsDNS1123Subdomain(crd); len(why) > 0 {
			return fmt.Errorf("CRDs: %q is no name of a CustomResourceDefinition: %s", crd, strings.Join(why, "; "))
		}
		if strings.Count(crd, ".") < 2 {
			return fmt.Errorf("CRDs: %q is no name of a CustomResourceDefinition, which is the plural and the group, such as widgets.example.com", crd)
		}
	}
	switch {
	case o.PruneAfter < 0 && o.PruneAfter != Never:
		return fmt.Errorf("PruneAfter: %v is negative, and is not Never", o.PruneAfter)
	case o.PruneAfter > 0 && o.PruneAfter < shortest:
		return fmt.Errorf("PruneAfter: %v is less than %v", o.PruneAfter, shortest)
	case o.MaxObjectsPerSecond < 0:
		return fmt.Errorf("MaxObjectsPerSecond: %d is negative", o.MaxObjectsPerSecond)
	case o.Settle != 0 && o.Settle < shortest:
		return fmt.Errorf("Settle: %v is less than %v", o.Settle, shortest)
	case o.Poll != 0 && o.Poll < shortest:
		return fmt.Errorf("Poll: %v is less than %v", o.Poll, shortest)
	}
	return nil
}

// SetupWithManager adds a controller that migrates the definitions' objects to a manager. It
// works where the manager is elected. A process calls it once, with all definitions: the controller's name is
// taken afterwards. In tests each manager can have one, if its Controller.SkipNameValidation is true.
func SetupWithManager(mgr manager.Manager, o Options) error {
	if mgr == nil {
		return errors.New("a migrator needs a manager")
	}
	if err := o.validate(); err != nil {
		return err
	}
	o.CRDs = slices.Compact(slices.Sorted(slices.Values(o.CRDs))) // lists of several components may share a name
	logger := mgr.GetLogger().WithName(name)
	own, err := stock.NewOwn(stock.Config{
		Rest: mgr.GetConfig(), Instance: name, Settle: o.Settle, Poll: o.Poll, VerifyAll: o.VerifyAll, MaxObjectsPerSecond: o.MaxObjectsPerSecond,
		Settings: observed.Settings{PruneAfter: o.PruneAfter, BestEffort: o.BestEffort}, Logger: logger,
	})
	if err != nil {
		return err
	}
	// The manager's cache may leave definitions out, by their labels.
	changes := make(chan event.GenericEvent)
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		own.Watch(ctx, o.CRDs, func(crd string) {
			select {
			case changes <- event.GenericEvent{Object: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: crd}}}:
			case <-ctx.Done():
			}
		})
		return nil
	})); err != nil {
		return err
	}
	told := &telling{last: map[string]Standing{}, to: o.Changed, logger: logger}
	step := reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
		tell := func(s Standing) { told.tell(ctx, r.Name, s) }
		standing := own.Step(ctx, r.Name, tell)
		tell(standing)
		return reconcile.Result{RequeueAfter: standing.Again}, nil
	})
	// Nothing else would report definitions that do not exist.
	start := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		for _, crd := range o.CRDs {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: crd}})
		}
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).Named(name).WatchesRawSource(start).WatchesRawSource(source.Channel(changes, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: atATime}).Complete(step)
}

// telling remembers the last reported standings.
type telling struct {
	to     func(string, Standing)
	logger logr.Logger

	mu   sync.Mutex // held while to is called
	last map[string]Standing
}

// tell reports a standing if it is new, until ctx ends.
func (t *telling) tell(ctx context.Context, crd string, s Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was, ok := t.last[crd]; ctx.Err() != nil || ok && was.Done == s.Done && was.Why == s.Why {
		return
	}
	t.last[crd] = s
	if t.to != nil {
		t.to(crd, s)
	}
	t.logger.Info("Migration of stored objects", "crd", crd, "done", s.Done, "waitingFor", s.Why)
}
