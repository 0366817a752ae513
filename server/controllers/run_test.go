package controllers

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/concord-dev/concord/workers"
)

// TestPanic: a controller that panics ends all controllers of its term, but not the process.
func TestPanic(t *testing.T) {
	ended := make(chan struct{})
	err := runLoops(t.Context(), []loop{
		func(ctx context.Context) { <-ctx.Done(); close(ended) },
		func(context.Context) { panic("a bug") },
	})
	if !errors.Is(err, workers.ErrPanicked) {
		t.Errorf("the term ends with %v", err)
	}
	select {
	case <-ended:
	default:
		t.Error("another controller runs on")
	}
}

// TestLoopsEnd: controllers run until their term ends, which is no error.
func TestLoopsEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	begun, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- runLoops(ctx, []loop{func(ctx context.Context) { close(begun); <-ctx.Done() }, func(context.Context) {}})
	}()
	<-begun
	select {
	case err := <-done:
		t.Fatalf("they ended before the term did: %v", err)
	default:
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("they do not end")
	}
}

// TestQuotaEvaluators: a quota is counted by resources that are served. Informers of others never sync.
func TestQuotaEvaluators(t *testing.T) {
	served := map[schema.GroupVersionResource]bool{}
	for _, resource := range []string{"configmaps", "resourcequotas", "secrets", "services"} {
		served[corev1.SchemeGroupVersion.WithResource(resource)] = true
	}
	evaluators, err := quotaEvaluators(informers.NewSharedInformerFactory(fake.NewClientset(), 0), served)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range evaluators {
		got = append(got, e.GroupResource().String())
	}
	slices.Sort(got)
	if want := []string{"configmaps", "resourcequotas", "secrets", "services"}; !slices.Equal(got, want) {
		t.Errorf("counted are %v, served are %v", got, want)
	}
}
