package builtin_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// reports reads "server:encoding ..." into reports that decode everything.
func reports(text string) []agree.Report {
	var all []agree.Report
	for _, word := range strings.Fields(text) {
		server, encoding, _ := strings.Cut(word, ":")
		all = append(all, agree.Report{
			Server: agree.ServerID(server), Encoding: agree.Encoding(encoding), Decodable: []string{"g/v1", "g/v2", "g/v3"},
		})
	}
	return all
}

// TestEpoch follows one StorageVersion. Each step writes reports, and every write claims
// another history; the epoch rises exactly when the set of encodings changes, and the
// last epoch of each encoding is remembered.
func TestEpoch(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	client := s.InternalV1alpha1().StorageVersions()
	claim := func(sv *v1alpha1.StorageVersion) {
		storageversion.SetHistory(sv, agree.History{Epoch: 77, Last: map[agree.Encoding]int64{"g/v9": 70}})
	}
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: "g.things", Annotations: map[string]string{"kept": "yes"}}}
	storageversion.SetReports(sv, reports("a:g/v1"), metav1.Now())
	claim(sv)
	sv, err := client.Create(ctx, sv, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expectHistory(t, sv, "epoch 1 (g/v1@1)")
	for _, step := range []struct{ reports, history string }{
		{"a:g/v1 b:g/v1", "epoch 1 (g/v1@1)"},
		{"b:g/v1", "epoch 1 (g/v1@1)"},
		{"b:g/v1 c:g/v2", "epoch 2 (g/v1@2 g/v2@2)"},
		{"b:g/v2 c:g/v2", "epoch 3 (g/v1@2 g/v2@3)"},
		{"b:g/v1 c:g/v1", "epoch 4 (g/v1@4 g/v2@3)"},
		{"", "epoch 5 (g/v1@4 g/v2@3)"},
		{"d:g/v1", "epoch 6 (g/v1@6 g/v2@3)"},
	} {
		storageversion.SetReports(sv, reports(step.reports), metav1.Now())
		claim(sv)
		if sv, err = client.UpdateStatus(ctx, sv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if !agree.Equal(storageversion.Reports(sv), reports(step.reports)) {
			t.Errorf("reports are %v, want %s", storageversion.Reports(sv), step.reports)
		}
		expectHistory(t, sv, step.history)
	}

	// The main resource keeps status, the history and the client's own annotations.
	claim(sv)
	storageversion.SetReports(sv, reports("d:g/v3"), metav1.Now())
	sv.Annotations["own"] = "yes"
	if sv, err = client.Update(ctx, sv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expectHistory(t, sv, "epoch 6 (g/v1@6 g/v2@3)")
	if !agree.Equal(storageversion.Reports(sv), reports("d:g/v1")) || sv.Annotations["own"] != "yes" || sv.Annotations["kept"] != "yes" {
		t.Errorf("after an update: %+v", sv)
	}
}

// TestEpochWithPatches: patches and server-side apply leave the history alone, also one
// that removes the annotations.
func TestEpochWithPatches(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	client := s.InternalV1alpha1().StorageVersions()
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: "g.things"}}
	storageversion.SetReports(sv, reports("a:g/v1"), metav1.Now())
	if _, err := client.Create(ctx, sv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for patchType, patch := range map[types.PatchType]string{
		types.MergePatchType: `{"metadata":{"annotations":null}}`,
		types.ApplyPatchType: `{"apiVersion":"internal.apiserver.k8s.io/v1alpha1","kind":"StorageVersion","metadata":{"annotations":{"concord.dev/epoch":"50"}}}`,
	} {
		options := metav1.PatchOptions{}
		if patchType == types.ApplyPatchType {
			options.FieldManager, options.Force = "tester", new(bool)
			*options.Force = true
		}
		sv, err := client.Patch(ctx, "g.things", patchType, []byte(patch), options)
		if err != nil {
			t.Fatal(err)
		}
		expectHistory(t, sv, "epoch 1 (g/v1@1)")
	}
}

func expectHistory(t *testing.T, sv *v1alpha1.StorageVersion, want string) {
	t.Helper()
	history, err := storageversion.History(sv)
	if err != nil {
		t.Fatal(err)
	}
	if got := history.String(); got != want {
		t.Errorf("history is %s, want %s", got, want)
	}
}

// TestStorageVersionStatusKeepsMetadata: what a status update says of metadata is ignored.
func TestStorageVersionStatusKeepsMetadata(t *testing.T) {
	s, ctx := newServer(t), t.Context()
	client := s.InternalV1alpha1().StorageVersions()
	sv, err := client.Create(ctx, &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{
		Name: "g.things", Labels: map[string]string{"a": "b"}, Finalizers: []string{"x/y"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expectHistory(t, sv, "epoch 0 ()")
	sv.Labels, sv.Finalizers = nil, nil
	storageversion.SetReports(sv, reports("a:g/v1"), metav1.Now())
	if sv, err = client.UpdateStatus(ctx, sv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if sv.Labels["a"] != "b" || !slices.Equal(sv.Finalizers, []string{"x/y"}) || len(sv.Status.StorageVersions) != 1 {
		t.Errorf("after a status update: %+v", sv)
	}
	stale := sv.DeepCopy()
	if _, err = client.UpdateStatus(ctx, sv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	stale.ResourceVersion = ""
	_, err = client.UpdateStatus(ctx, stale, metav1.UpdateOptions{})
	expectField(t, err, "metadata.resourceVersion")
}
