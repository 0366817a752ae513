package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/testbed/cluster"
)

// guarded is a stock kube-apiserver with the guards of deploy/controllers/guards.
type guarded struct {
	*apiserver
	t *testing.T
}

const guardedCRD = "gadgets.example.com"

func (g guarded) definitions(config *rest.Config) apiextensionsclient.Interface {
	g.t.Helper()
	client, err := apiextensionsclient.NewForConfig(config)
	must(g.t, err)
	return client
}

// impersonating returns a client configuration for a user. A ServiceAccount gets its own groups,
// and so its own permissions; others are in system:masters, so that only the guards decide what
// they may write.
func (g guarded) impersonating(name string) *rest.Config {
	config := g.as(adminToken)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup}}
	if name == controllersUser {
		config.Impersonate.Groups = []string{user.AllAuthenticated, "system:serviceaccounts", "system:serviceaccounts:concord-system"}
	}
	return config
}

// controllersUser is the identity of concord controllers in the manifests.
const controllersUser = "system:serviceaccount:concord-system:concord-controllers"

// patch changes the definition, as a dry run if trial is true.
func (g guarded) patch(ctx context.Context, name, as, change string, trial bool, subresources ...string) error {
	options := metav1.PatchOptions{}
	if trial {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err := g.definitions(g.impersonating(as)).ApiextensionsV1().CustomResourceDefinitions().Patch(ctx, name, types.MergePatchType, []byte(change), options, subresources...)
	return err
}

// refuses waits until a change is refused with these words. Policies and their parameter objects
// reach the server through watches, so that takes a moment.
func (g guarded) refuses(what, name, as, change string, words []string, subresources ...string) {
	g.t.Helper()
	eventually(g.t, time.Minute, what+" is refused", func(ctx context.Context) error {
		err := g.patch(ctx, name, as, change, true, subresources...)
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("answer: %v", err)
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				return fmt.Errorf("%q is not said: %v", word, err)
			}
		}
		return nil
	})
}

// allows waits until a dry run of the change succeeds.
func (g guarded) allows(what, name, as, change string, subresources ...string) {
	g.t.Helper()
	eventually(g.t, time.Minute, what+" is allowed", func(ctx context.Context) error {
		return g.patch(ctx, name, as, change, true, subresources...)
	})
}

// define makes a CRD with the versions v1 and v2 that stores v2 and stored v1 before.
func (g guarded) define(group string) (name string) {
	g.t.Helper()
	crd := cluster.Definition(schema.GroupResource{Group: group, Resource: "gadgets"}, "v1")
	if _, err := g.definitions(g.as(adminToken)).ApiextensionsV1().CustomResourceDefinitions().Create(g.t.Context(), crd, metav1.CreateOptions{}); err != nil {
		g.t.Fatal(err)
	}
	eventually(g.t, time.Minute, crd.Name+" stores v2, and v1 is among its storedVersions", func(ctx context.Context) error {
		if err := g.patch(ctx, crd.Name, "admin", storing("v1", "v2"), false); err != nil {
			return err
		}
		now, err := g.definitions(g.as(adminToken)).ApiextensionsV1().CustomResourceDefinitions().Get(ctx, crd.Name, metav1.GetOptions{})
		if err == nil && len(now.Status.StoredVersions) != 2 {
			err = fmt.Errorf("storedVersions are %v", now.Status.StoredVersions)
		}
		return err
	})
	return crd.Name
}

// storing returns a patch that leaves a CRD with these versions, and the last as its storage
// version.
func storing(versions ...string) string {
	type version struct {
		Name    string         `json:"name"`
		Served  bool           `json:"served"`
		Storage bool           `json:"storage"`
		Schema  map[string]any `json:"schema"`
	}
	var list []version
	for i, v := range versions {
		list = append(list, version{v, true, i == len(versions)-1, map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
	}
	change, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": list}})
	if err != nil {
		panic(err)
	}
	return string(change)
}

// stored writes the StorageState of the CRD, as concord controllers do.
func (g guarded) stored(encodings ...string) {
	g.t.Helper()
	state := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: guardedCRD}}
	state.Spec.Resource = migrationv1alpha1.GroupResource{Group: "example.com", Resource: "gadgets"}
	objects := g.Objects()
	eventually(g.t, time.Minute, fmt.Sprintf("the StorageState says %v", encodings), func(ctx context.Context) error {
		if err := objects.Create(ctx, state.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		now := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: guardedCRD}}
		if err := objects.Get(ctx, types.NamespacedName{Name: guardedCRD}, now); err != nil {
			return err
		}
		now.Status.PersistedEncodings = encodings
		return objects.Status().Update(ctx, now)
	})
}

// TestGuards tries the admission policies of deploy/controllers/guards on Kubernetes' own
// kube-apiserver, as the users that they treat differently.
func TestGuards(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	g := guarded{c.ready(stock, "one"), t}
	if name := g.define("example.com"); name != guardedCRD {
		t.Fatal(name)
	}
	other := g.define("example.org")
	pruned := `{"status":{"storedVersions":["v2"]}}`
	// Without guards, the API server accepts all of these changes.
	g.allows("pruning without a guard", guardedCRD, "admin", pruned, "status")
	g.install(withGuards)

	t.Run("StoredVersions", func(t *testing.T) {
		for _, who := range []string{"admin", "system:kube-controller-manager", "system:serviceaccount:kube-system:storage-version-migrator-controller", "system:serviceaccount:default:concord-controllers", roles.Patcher.User()} {
			g.refuses("pruning by "+who, guardedCRD, who, pruned, []string{
				"objects may still be stored in v1", "kubectl get storagestates.migration.k8s.io " + guardedCRD, "delete the ValidatingAdmissionPolicyBinding concord-stored-versions",
			}, "status")
		}
		g.allows("pruning by the controllers", guardedCRD, controllersUser, pruned, "status")
		for _, who := range []string{roles.Trigger.User(), "system:concord-controllers"} { // the second user is that of an earlier build
			g.allows("pruning by "+who+" of Concord's API servers", guardedCRD, who, pruned, "status")
		}
		g.allows("another change of the status", guardedCRD, "admin", `{"status":{"storedVersions":["v1","v2"],"conditions":[]}}`, "status")
	})

	t.Run("StorageVersion", func(t *testing.T) { g.movesOnlyAtRest(other) })

	t.Run("Versions", func(t *testing.T) {
		without := storing("v2")
		if err := g.patch(t.Context(), guardedCRD, "admin", without, true); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "missing from spec.versions") {
			t.Errorf("the API server itself: %v", err)
		}
		for _, name := range []string{guardedCRD, other} {
			must(t, g.patch(t.Context(), name, controllersUser, pruned, false, "status"))
		}
		g.allows("taking out a version where there is no StorageState", guardedCRD, "admin", without)
		see := "kubectl get storagestates.migration.k8s.io " + guardedCRD
		for _, test := range []struct {
			stored []string
			says   string
		}{
			{nil, "it is not known yet in which versions objects are stored"},
			{[]string{"Unknown"}, "it is not known yet in which versions objects are stored"},
			{[]string{"example.com/v1", "example.com/v2"}, "objects may still be stored in it and would become unreadable"},
			{[]string{"example.com/v2", "example.com/v1+aescbc:v1:key1:5bd1f0a2c3e49b77"}, "objects may still be stored in it and would become unreadable"},
		} {
			g.stored(test.stored...)
			g.refuses(fmt.Sprintf("taking out v1 with %v stored", test.stored), guardedCRD, "admin", without, []string{"version v1 cannot be taken out: " + test.says, see, "delete the ValidatingAdmissionPolicyBinding concord-versions first, after a proof of your own"})
		}
		g.allows("another change of the definition", guardedCRD, "admin", `{"metadata":{"labels":{"any":"label"}},"spec":{"names":{"shortNames":["gg"]}}}`)
		g.allows("adding a version", guardedCRD, "admin", storing("v1", "v3", "v2"))
		g.allows("taking out a version of another group's resource of the same name", other, "admin", without)
		g.withoutDefinition(c, without)
		g.stored("example.com/v2")
		g.allows("taking out v1 after the proof", guardedCRD, "admin", without)
		if err := g.patch(t.Context(), guardedCRD, "admin", without, false); err != nil {
			t.Error(err)
		}
	})
}

// withoutDefinition deletes the CRD of StorageStates, and all of them with it. Then a running
// server has no parameter objects for the policies and accepts changes, and a server that starts
// refuses all updates until the manifests are applied again.
func (g guarded) withoutDefinition(c *control, without string) {
	g.t.Helper()
	definitions := g.definitions(g.as(adminToken)).ApiextensionsV1().CustomResourceDefinitions()
	must(g.t, definitions.Delete(g.t.Context(), "storagestates.migration.k8s.io", metav1.DeleteOptions{}))
	eventually(g.t, time.Minute, "the definition of StorageStates is gone", func(ctx context.Context) error {
		_, err := definitions.Get(ctx, "storagestates.migration.k8s.io", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("answer: %v", err)
	})
	g.allows("taking out a version that was stored", guardedCRD, "admin", without)
	late := guarded{c.ready(stock, "two"), g.t}
	label := `{"metadata":{"labels":{"any":"label"}}}`
	eventually(g.t, time.Minute, "any change is refused by a server that has started since", func(ctx context.Context) error {
		err := late.patch(ctx, guardedCRD, "admin", label, true)
		if err == nil || !strings.Contains(err.Error(), "failed to find resource referenced by paramKind") {
			return fmt.Errorf("answer: %v", err)
		}
		return nil
	})
	g.install(withGuards)
	late.allows("a change", guardedCRD, "admin", label)
	for _, server := range []guarded{g, late} {
		g.stored("example.com/v1")
		server.refuses("taking out v1 again", guardedCRD, "admin", without, []string{"version v1 cannot be taken out"})
	}
}

// movesOnlyAtRest tries to change the storage version of a CRD that is being migrated, and of
// another one.
func (g guarded) movesOnlyAtRest(other string) {
	objects, ctx := g.Objects(), g.t.Context()
	migration := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "gadgets-1"}}
	migration.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "gadgets"}
	must(g.t, objects.Create(ctx, migration))
	back := storing("v2", "v1")
	say := func(condition migrationv1alpha1.MigrationConditionType, reason string) {
		g.t.Helper()
		migrationv1alpha1.SetCondition(migration, condition, reason, "", metav1.Now())
		must(g.t, objects.Status().Update(ctx, migration))
	}
	g.allows("a move while the migration has not begun", guardedCRD, "admin", back)
	say(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting)
	g.refuses("a move while the migration runs", guardedCRD, "admin", back, []string{"the storage version cannot move while a migration to it runs", "kubectl concord pause " + guardedCRD, "storageversionmigrations.migration.k8s.io gadgets-1. If Concord does not run here any more, delete the ValidatingAdmissionPolicyBinding concord-storage-version"})
	migration.Spec.Paused = true
	must(g.t, objects.Update(ctx, migration))
	g.allows("a move while it is paused", guardedCRD, "admin", back)
	migration.Spec.Paused = false
	must(g.t, objects.Update(ctx, migration))
	g.refuses("a move after it was resumed", guardedCRD, "admin", back, []string{"while a migration to it runs"})
	g.allows("another change while the migration runs", guardedCRD, "admin", `{"metadata":{"annotations":{"concord.dev/hold":"true"}}}`)
	g.allows("a move of another group's resource of the same name", other, "admin", back)
	say(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	g.allows("a move after the migration", guardedCRD, "admin", back)
}
