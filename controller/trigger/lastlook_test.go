package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// Before storedVersions are pruned there is a last look. One that fails keeps them, and there is none where
// the pruning would be refused.
func TestLastLook(t *testing.T) {
	w, c := toPrune(t)
	looks := 0
	answer := errors.New("an object is stored in v1")
	c.cfg.LastLook = func(_ context.Context, gr schema.GroupResource, target evolve.Target) error {
		if looks++; gr != cronJobs || target.Encoding != v2 {
			t.Errorf("the last look is at %s for %s", gr, target)
		}
		return answer
	}
	r := newRun(c)
	defer r.queue.ShutDown()
	one := func() {
		r.one(t.Context(), cronJobs)
		r.lookers.Wait()
	}
	is := func(when string, want int, stored ...string) {
		t.Helper()
		if got := w.changeCRD(nil).Status.StoredVersions; looks != want || !slices.Equal(got, stored) {
			t.Errorf("%s: storedVersions are %v, after %d last looks; want %v, %d", when, got, looks, stored, want)
		}
	}
	w.Fail("update status CustomResourceDefinition", apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, cronJobs.String(), errors.New("guarded")))
	for range 3 {
		one()
	}
	is("refused", 0, "v1", "v2")
	if w.state().Annotations[migrationv1alpha1.PruneRefusedAnnotation] == "" {
		t.Error("it is not told that it is refused")
	}
	w.Before = nil
	one()
	is("the last look has failed", 1, "v1", "v2")
	answer = nil
	one()
	is("the last look has ended well", 2, "v1", "v2")
	one()
	is("after that", 2, "v2")
}

// A webhook that refuses dry runs does not keep the last look, and the pruning, from being done.
func TestLastLookWithoutDryRuns(t *testing.T) {
	w, c := toPrune(t)
	refused := false
	c.cfg.LastLook = func(context.Context, schema.GroupResource, evolve.Target) error {
		w.Before = nil
		return nil
	}
	w.Before = func(call string) error {
		if strings.HasPrefix(call, "update status CustomResource") {
			refused = true
			return apierrors.NewBadRequest("admission webhook \"w\" does not support dry run")
		}
		return nil
	}
	r := newRun(c)
	defer r.queue.ShutDown()
	for range 3 {
		r.one(t.Context(), cronJobs)
		r.lookers.Wait()
	}
	if got := w.changeCRD(nil).Status.StoredVersions; !refused || !slices.Equal(got, []string{"v2"}) {
		t.Errorf("storedVersions are %v; a dry run was refused: %v", got, refused)
	}
}

// However many definitions are due together, no more last looks are made at a time than there are workers, and one
// reason why they fail is told once.
func TestLastLooksAtATime(t *testing.T) {
	_, c := newWorld(t, kinds{})
	const definitions = 50
	var told []string
	c.cfg.Logger = funcr.New(func(_, line string) { told = append(told, line) }, funcr.Options{})
	var under atomic.Int64
	var end chan struct{}
	c.cfg.LastLook = func(_ context.Context, gr schema.GroupResource, _ evolve.Target) error {
		under.Add(1)
		defer under.Add(-1)
		<-end
		return fmt.Errorf("look at %s: a webhook does not answer", gr)
	}
	r := newRun(c)
	defer r.queue.ShutDown()
	synctest.Test(t, func(t *testing.T) {
		end, r.under = make(chan struct{}), make(chan struct{}, cap(r.under)) // of this bubble
		for i := range definitions {
			r.lookLast(t.Context(), schema.GroupResource{Group: "example.com", Resource: fmt.Sprint("r", i)}, evolve.Target{})
		}
		var most int64
		for range definitions {
			synctest.Wait()
			most = max(most, under.Load())
			end <- struct{}{}
		}
		r.lookers.Wait()
		if most != int64(c.cfg.Workers) {
			t.Errorf("%d last looks at a time", most)
		}
	})
	if len(told) != 1 {
		t.Errorf("told is %q", told)
	}
}
