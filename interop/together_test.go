package interop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
)

// TestTogether has kube-controller-manager's own migrator migrate the same resource at the same
// time, under writers: no write is lost, storedVersions is at no time less than the truth, and an
// event about the definition says that both do.
func TestTogether(t *testing.T) {
	const objects = 1000
	c := newCluster(t)
	a := guarded(t, c)
	b := c.APIServer("b")
	deployed(a, nil)
	controllerManager(t, b, withMigrator, "--leader-elect=false")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	w.AwaitStored(beside.V1, beside.V1)
	judged := judge(t, w)
	writing := w.Write(objects, a, b)
	w.Store("v2")
	order(t, w)
	w.AwaitPruned(objects)
	beside.Eventually(t, 2*beside.Patience, "the in-tree migration ends", func(ctx context.Context) error {
		now, err := conditions(ctx, t, w)
		if _, ok := now["Succeeded"]; err == nil && !ok {
			err = fmt.Errorf("its conditions are %v", now)
		}
		return err
	})
	writing.Stop("v2")
	told, err := a.Kube().CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + w.Name()})
	if err != nil || len(told.Items) != 1 || told.Items[0].Reason != migrationv1alpha1.ReasonMigratedElsewhere {
		t.Errorf("events about the definition are %+v, %v", told, err)
	}
	if err := w.TakeOut(); err != nil {
		t.Fatalf("take out v1: %v", err)
	}
	t.Logf("storedVersions was true at %d changes of the definition", judged())
}

// judge checks storedVersions at every change of the definition from now on. The function that it
// returns waits until the definition has no v1, and returns how many changes there were.
func judge(t testing.TB, w *beside.Widgets) (wait func() int) {
	t.Helper()
	changes, err := w.Server.Objects().Watch(t.Context(), &apiextensionsv1.CustomResourceDefinitionList{},
		&client.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", w.Name())})
	must(t, err)
	t.Cleanup(changes.Stop)
	done := make(chan int, 1)
	go func() {
		seen := 0
		defer func() { done <- seen }()
		for told := range changes.ResultChan() {
			crd, ok := told.Object.(*apiextensionsv1.CustomResourceDefinition)
			if !ok {
				t.Errorf("told is %s of %T", told.Type, told.Object)
				return
			}
			seen++
			if err := truthful(t.Context(), w, crd); err != nil {
				t.Error(err)
				return
			}
			if len(crd.Spec.Versions) == 1 {
				return
			}
		}
		t.Error("the watch of the definition ended")
	}()
	return func() int { return <-done }
}

// truthful checks a state of the definition against what etcd held then.
func truthful(ctx context.Context, w *beside.Widgets, crd *apiextensionsv1.CustomResourceDefinition) error {
	var revision int64
	if _, err := fmt.Sscan(crd.ResourceVersion, &revision); err != nil {
		return err
	}
	counts, err := w.Stored(ctx, revision)
	if err != nil {
		return err
	}
	for encoding, n := range counts {
		if version := strings.TrimPrefix(encoding, beside.Group+"/"); !slices.Contains(crd.Status.StoredVersions, version) {
			return fmt.Errorf("at revision %d storedVersions are %v, although %d objects are stored in %s", revision, crd.Status.StoredVersions, n, version)
		}
	}
	return nil
}
