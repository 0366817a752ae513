package join

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/concord-dev/concord/join/roles"
)

// TestViewRefused: a role for people that cannot be made keeps nothing else from being made, and is tried again without
// haste.
func TestViewRefused(t *testing.T) {
	kube := fake.NewClientset()
	tries, refuse := 0, true
	kube.PrependReactor("create", "clusterroles", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if role, is := create.GetObject().(*rbacv1.ClusterRole); !ok || !is || role.Name != roles.View.Name {
			return false, nil, nil
		}
		if tries++; refuse {
			return true, nil, errors.New("a webhook refuses it")
		}
		return false, nil, nil
	})
	j := &Join{config: Config{RBAC: true}, clients: &clients{kube: kube, objects: withGadgets(t).Build()}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := j.ensureOwn(ctx); err != nil || tries > 0 {
		t.Fatalf("the controllers wait for the role that people read by: %v, after %d tries", err, tries)
	}
	var said string
	j.keepView(t.Context(), &said)
	if tries != 1 || !strings.Contains(said, "a webhook refuses it") {
		t.Errorf("after %d tries it has said %q", tries, said)
	}
	refuse = false
	j.keepView(t.Context(), &said)
	if _, err := kube.RbacV1().ClusterRoles().Get(t.Context(), roles.View.Name, metav1.GetOptions{}); err != nil || said != "" {
		t.Errorf("when it is let: %v, %q", err, said)
	}
}

// TestRolesMadeAgain: that roles are made again is told where they are, and not of a controller that is refused for
// another reason, which is told once.
func TestRolesMadeAgain(t *testing.T) {
	kube := fake.NewClientset() // its SubjectAccessReviews refuse everything
	j := &Join{config: Config{RBAC: true}, clients: &clients{kube: kube}}
	var said string
	if j.restoreRoles(t.Context(), &said); said != "" {
		t.Errorf("after roles were made it says %q", said)
	}
	if j.restoreRoles(t.Context(), &said); !strings.Contains(said, roles.All[0].User()) {
		t.Errorf("where nothing is missing it says %q", said)
	}
	must(t, kube.RbacV1().ClusterRoles().Delete(t.Context(), "concord:"+roles.Trigger.Name, metav1.DeleteOptions{}))
	if j.restoreRoles(t.Context(), &said); said != "" {
		t.Errorf("after one was deleted it says %q", said)
	}
}
