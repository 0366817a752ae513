package admit

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/roles"
)

// TestAuthors: only the server itself and its controllers write the fields that the controllers rely on.
func TestAuthors(t *testing.T) {
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	loopback := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	acting := func(r roles.Role) user.Info { return &user.DefaultInfo{Name: r.User()} }
	object := func(edit func(*unstructured.Unstructured)) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": "o", "annotations": map[string]any{"concord.dev/epoch": "3", "other": "a"}},
			"spec":     map[string]any{"paused": false},
			"status":   map[string]any{"epoch": int64(3)},
		}}
		if edit != nil {
			edit(u)
		}
		return u
	}
	status := func(u *unstructured.Unstructured) { u.Object["status"] = map[string]any{"epoch": int64(4)} }
	annotate := func(key string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{"concord.dev/epoch": "3", key: "x"})
		}
	}
	states, migrations := migrationv1alpha1.StorageStates, migrationv1alpha1.StorageVersionMigrations
	foreign := schema.GroupResource{Group: "example.com", Resource: "storagestates"}
	for _, test := range []struct {
		name     string
		gr       schema.GroupResource
		by       user.Info
		new, old *unstructured.Unstructured
		want     string
	}{
		{"an administrator changes a StorageState", states, admin, object(status), object(nil), "delete the StorageState"},
		{"the server does", states, loopback, object(status), object(nil), ""},
		{"the trigger does", states, acting(roles.Trigger), object(status), object(nil), ""},
		{"the migrator does", states, acting(roles.Migrator), object(status), object(nil), "delete the StorageState"},
		{"the patcher does", states, acting(roles.Patcher), object(status), object(nil), "delete the StorageState"},
		{"controllers of the build before, whose servers write through themselves", states, &user.DefaultInfo{Name: "system:concord-controllers"}, object(status), object(nil), "delete the StorageState"},
		{"nobody does", states, nil, object(status), object(nil), "delete the StorageState"},
		{"somebody with the server's name only", states, &user.DefaultInfo{Name: user.APIServerUser}, object(status), object(nil), "delete the StorageState"},
		{"an administrator annotates it", states, admin, object(annotate("other")), object(nil), ""},
		{"an administrator annotates it as the controllers do", states, admin, object(annotate("concord.dev/stored-encodings")), object(nil), "delete the StorageState"},
		{"an administrator takes such an annotation away", states, admin, object(func(u *unstructured.Unstructured) { u.SetAnnotations(nil) }), object(nil), "delete the StorageState"},
		{"an administrator ends a migration", migrations, admin, object(status), object(nil), "set spec.paused or delete it"},
		{"the migrator does", migrations, acting(roles.Migrator), object(status), object(nil), ""},
		{"the trigger does", migrations, acting(roles.Trigger), object(status), object(nil), ""},
		{"the mirror does", migrations, acting(roles.Mirror), object(status), object(nil), "set spec.paused or delete it"},
		{"the mirror makes one", migrations, acting(roles.Mirror), &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}, nil, ""},
		{"an administrator pauses it", migrations, admin, object(func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"paused": true} }), object(nil), ""},
		{"an administrator gives it another target", migrations, admin, object(annotate("concord.dev/encoding")), object(nil), "set spec.paused or delete it"},
		{"an administrator gives it another epoch, and a label with the old one", migrations, admin, object(func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{"concord.dev/epoch": "4"})
			u.SetLabels(map[string]string{"concord.dev/epoch": "3"})
		}), object(nil), "set spec.paused or delete it"},
		{"an administrator says that the trigger made it", migrations, admin, object(func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{migrationv1alpha1.MadeByLabel: "trigger"})
		}), object(nil), migrationv1alpha1.MadeByLabel},
		{"an administrator makes one", migrations, admin, &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}, nil, ""},
		{"an administrator makes one with a target", migrations, admin, object(nil), nil, "set spec.paused or delete it"},
		{"an administrator deletes one", migrations, admin, nil, object(nil), ""},
		{"a resource of that name elsewhere", foreign, admin, object(status), object(nil), ""},
	} {
		inner := &counting{}
		g := protocol{Interface: inner, roles: true}
		// A nil *unstructured.Unstructured in an interface would not be a nil interface.
		var obj, old runtime.Object
		operation := admission.Update
		if test.new != nil {
			obj = test.new
		} else {
			operation = admission.Delete
		}
		if test.old != nil {
			old = test.old
		} else {
			operation = admission.Create
		}
		a := admission.NewAttributesRecord(obj, old, schema.GroupVersionKind{}, "", "o", test.gr.WithVersion("v1alpha1"), "", operation, nil, false, test.by)
		err := g.Validate(t.Context(), a, nil)
		switch {
		case test.want == "" && (err != nil || inner.called != 1):
			t.Errorf("%s: %v, and the other admission was asked %d times", test.name, err, inner.called)
		case test.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.want) || inner.called != 0):
			t.Errorf("%s: %v, want it forbidden with %q", test.name, err, test.want)
		}
		if err := (protocol{roles: true}).Validate(t.Context(), a, nil); (err != nil) != (test.want != "") {
			t.Errorf("%s, without another admission: %v", test.name, err)
		}
	}
}

// TestPasses: no other admission, mutating or validating, sees StorageVersions, nor the Leases that the server and its
// controllers write in the namespace of the identity Leases. It sees everybody else's Leases.
func TestPasses(t *testing.T) {
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	loopback := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	acting := func(r roles.Role) user.Info { return &user.DefaultInfo{Name: r.User()} }
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	const own = storageversion.IdentityNamespace
	for _, test := range []struct {
		name      string
		gr        schema.GroupResource
		namespace string
		by        user.Info
		roles     bool
		seen      int
	}{
		{"the server's report", storageversion.Resource, "", loopback, true, 0},
		{"the collector's change of a report", storageversion.Resource, "", acting(roles.Collector), true, 0},
		{"an administrator's change of a report", storageversion.Resource, "", admin, true, 0},
		{"StorageVersions of another group", schema.GroupResource{Group: "example.com", Resource: "storageversions"}, "", loopback, true, 1},
		{"the server's Lease", leases, own, loopback, true, 0},
		{"the server's Lease where controllers have no users", leases, own, loopback, false, 0},
		{"the server's Lease in another namespace", leases, "default", loopback, true, 1},
		{"the election's Lease", leases, own, acting(roles.Election), true, 0},
		{"the collector's deletion of a Lease", leases, own, acting(roles.Collector), true, 0},
		{"the election's Lease in another namespace", leases, "default", acting(roles.Election), true, 1},
		{"a user called like the election where controllers have no users", leases, own, acting(roles.Election), false, 1},
		{"a Lease of another controller of ours", leases, own, acting(roles.Trigger), true, 1},
		{"an administrator's Lease", leases, own, admin, true, 1},
		{"a Lease of somebody with the server's name only", leases, own, &user.DefaultInfo{Name: user.APIServerUser}, true, 1},
		{"a node's Lease", leases, "kube-node-lease", &user.DefaultInfo{Name: "system:node:one"}, true, 1},
		{"nobody's Lease", leases, own, nil, true, 1},
		{"Leases of another group", schema.GroupResource{Group: "example.com", Resource: "leases"}, own, loopback, true, 1},
		{"the server's ConfigMap", schema.GroupResource{Resource: "configmaps"}, own, loopback, true, 1},
	} {
		for _, operation := range []admission.Operation{admission.Create, admission.Update, admission.Delete} {
			a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, test.namespace, "o", test.gr.WithVersion("v1"), "", operation, nil, false, test.by)
			mutating, validating := &counting{}, &counting{}
			if err := (protocol{Interface: mutating, roles: test.roles}).Admit(t.Context(), a, nil); err != nil || mutating.called != test.seen {
				t.Errorf("%s: %s: mutating admission is asked %d times, want %d, error %v", test.name, operation, mutating.called, test.seen, err)
			}
			if err := (protocol{Interface: validating, roles: test.roles}).Validate(t.Context(), a, nil); err != nil || validating.called != test.seen {
				t.Errorf("%s: %s: validating admission is asked %d times, want %d, error %v", test.name, operation, validating.called, test.seen, err)
			}
		}
	}
}

// counting is an admission plugin that lets everything pass and counts its calls.
type counting struct{ called int }

func (*counting) Handles(admission.Operation) bool { return true }

func (c *counting) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.called++
	return nil
}

func (c *counting) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.called++
	return nil
}
