package stock

import (
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/concord-dev/concord/controller/mirror"
)

// TestMirroredVersions: migrations in v1alpha1 (Kubernetes 1.34) have conditions of another form
// and are left alone.
func TestMirroredVersions(t *testing.T) {
	for version, want := range map[string]error{"": errNotServed, "v1alpha1": errAlpha, "v1beta1": nil, "v1": nil} {
		kube := fake.NewClientset()
		if version != "" {
			kube.Resources = []*metav1.APIResourceList{{GroupVersion: "storagemigration.k8s.io/" + version}}
		}
		m := &mirroring{controllers: &controllers{kube: kube, config: Config{Rest: &rest.Config{Host: "https://cluster.example.com"}}}}
		if err := m.connect(); !errors.Is(err, want) || want == nil && m.served.Version != version {
			t.Errorf("%q: %v, %v", version, m.served, err)
		}
	}
}

// TestMirrorModes: with --mirror=always the migrator counts as off without asking. With auto it does when a migration was
// left alone for as long as --mirror-after, and until then the reason says from when on.
func TestMirrorModes(t *testing.T) {
	always := &mirroring{controllers: &controllers{config: Config{Mirror: MirrorAlways}}}
	if err := always.may(t.Context()); err != nil {
		t.Errorf("always: %v", err)
	}
	scheme := runtime.NewScheme()
	must(t, errors.Join(coordinationv1.AddToScheme(scheme), storagemigrationv1.AddToScheme(scheme)))
	mine := &storagemigrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "mine", CreationTimestamp: metav1.NewTime(now)}}
	objects := ctrlfake.NewClientBuilder().WithScheme(scheme).WithObjects(mine).Build()
	clock := testclock.NewFakeClock(now.Add(time.Minute))
	auto := &mirroring{known: objects, controllers: &controllers{objects: objects, config: Config{Mirror: MirrorAuto, MirrorAfter: 7 * time.Minute, Clock: clock}}}
	from := "no kube-controller-manager has a Lease, and mine has been left alone since " + now.UTC().Format(time.RFC3339) + "; the migrator counts as off from " + now.Add(7*time.Minute).UTC().Format(time.RFC3339) + " on"
	if err := auto.may(t.Context()); !errors.Is(err, mirror.ErrLeft) || !strings.Contains(err.Error(), from) {
		t.Errorf("after a minute: %v; want %q", err, from)
	}
	clock.Step(6 * time.Minute)
	if err := auto.may(t.Context()); err != nil {
		t.Errorf("after seven: %v", err)
	}
}
