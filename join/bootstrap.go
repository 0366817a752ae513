package join

import (
	"context"
	"errors"
	"fmt"
	"time"

	apihelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/controller/owncrds"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/workers"
)

const (
	bootstrapRetry = 500 * time.Millisecond
	// ownLate is how long that may fail before the log says so at its default level: at a start gates are still closed.
	ownLate = 10 * time.Second
	// ownCRDsCheck is how often it is looked whether the own definitions are still there.
	ownCRDsCheck = 5 * time.Second
	// rolesRest is how long roles are left alone after a look at them: authorizers notice them with a delay, and
	// controllers may be forbidden something for other reasons.
	rolesRest = time.Minute
	// permissionPoll is how often it is asked whether a controller may begin.
	permissionPoll = 100 * time.Millisecond
)

// bootstrap is the post-start hook that creates the objects that the controllers need: their CustomResourceDefinitions
// and their permissions. Deleted ones are created again as long as the server runs. The objects of a deleted
// definition are lost, so that everything is proven again.
func (j *Join) bootstrap(hook genericapiserver.PostStartHookContext) error {
	go workers.Loop(hook, "bootstrap", j.keepOwn)
	return nil
}

// keepOwn makes the own objects until ctx ends.
func (j *Join) keepOwn(ctx context.Context) {
	if j.ensureOwn(ctx) != nil || j.awaitOwnCRDs(ctx) != nil {
		return // ctx has ended
	}
	var looked, viewed time.Time
	var saidOfView, saidOfRoles string
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		now := time.Now()
		if now.Sub(looked) >= rolesRest && j.clients.forbidden.Swap(false) {
			looked = now
			j.restoreRoles(ctx, &saidOfRoles)
		}
		if j.config.RBAC && now.Sub(viewed) >= rolesRest {
			viewed = now
			j.keepView(ctx, &saidOfView)
		}
		if j.lacksOwnCRD() {
			klog.FromContext(ctx).Info("A definition of Concord's own was deleted and is made again: all that is stored will be proven anew")
			_ = j.ensureOwn(ctx) // ends with ctx
		}
	}, ownCRDsCheck)
}

// keepView creates the ClusterRole for people who read, if it is missing. Nothing in the server depends on it, and no
// refused request would show that it is missing. said is the last logged error, which is not logged again.
func (j *Join) keepView(ctx context.Context, said *string) {
	text := ""
	if err := roles.EnsureView(j.clients.kube); err != nil {
		text = err.Error()
	}
	if text != "" && text != *said {
		klog.FromContext(ctx).Info("The role that lets people use kubectl concord cannot be made, and is tried again each minute", "err", text)
	}
	*said = text
}

// restoreRoles repairs the roles of the controllers if one of them lacks a permission. said is the last logged error,
// which is not logged again.
func (j *Join) restoreRoles(ctx context.Context, said *string) {
	for _, role := range roles.All {
		if ctx.Err() != nil || role.Granted(ctx, j.clients.kube) {
			continue
		}
		changed, err := roles.Ensure(j.clients.kube)
		if changed {
			*said = ""
			klog.FromContext(ctx).Info("Roles of Concord's own controllers, or their bindings, were deleted or changed: what was missing is made again", "user", role.User(), "err", err)
			return
		}
		if text := fmt.Sprintf("%s: %v", role.User(), err); text != *said {
			*said = text
			klog.FromContext(ctx).Info("A controller of Concord's own is not seen to have its permissions, and no role of it could be made again: one is annotated with rbac.authorization.kubernetes.io/autoupdate: \"false\", another authorizer refuses it, or the authorizer does not answer", "user", role.User(), "err", err)
		}
		return
	}
	*said = ""
}

// ensureOwn tries until it succeeds or ctx ends, since at first the server's own and other
// servers' gates may be closed.
func (j *Join) ensureOwn(ctx context.Context) error {
	var last error
	began, said := time.Now(), ""
	err := wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(ctx context.Context) (bool, error) {
		last = owncrds.Install(ctx, j.clients.objects, j.ownCRDs())
		if j.config.RBAC {
			_, err := roles.Ensure(j.clients.kube)
			last = errors.Join(last, err)
		}
		if last != nil {
			klog.FromContext(ctx).V(2).Info("Concord's own objects cannot be made yet", "err", last)
			if text := last.Error(); text != said && time.Since(began) >= ownLate {
				said = text
				klog.FromContext(ctx).Info("Concord's own definitions or roles cannot be made, and nothing is migrated before they are there: an admission policy or webhook may refuse them", "err", text)
			}
		}
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// ownCRDs are the definitions that the server itself needs. Those of migrations stay where
// they are, but a server without migrations does not make them.
func (j *Join) ownCRDs() []*apiextensionsv1.CustomResourceDefinition {
	if j.config.Silent {
		return versionv1alpha1.CRDs()
	}
	return append(migrationv1alpha1.CRDs(), versionv1alpha1.CRDs()...)
}

func (j *Join) lacksOwnCRD() bool {
	for _, want := range j.ownCRDs() {
		if j.crds.get(schema.ParseGroupResource(want.Name)) == nil {
			return true
		}
	}
	return false
}

// awaitOwnCRDs returns when the server's own definitions are established, or ctx ends.
func (j *Join) awaitOwnCRDs(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(context.Context) (bool, error) {
		for _, want := range j.ownCRDs() {
			crd := j.crds.get(schema.ParseGroupResource(want.Name))
			if crd == nil || !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
				return false, nil
			}
		}
		return true, nil
	})
}

// awaitPermitted returns when a controller may do what it does, or ctx ends.
func (j *Join) awaitPermitted(ctx context.Context, role roles.Role) error {
	if !j.config.RBAC {
		return nil
	}
	return wait.PollUntilContextCancel(ctx, permissionPoll, true, func(ctx context.Context) (bool, error) {
		granted := role.Granted(ctx, j.clients.kube)
		if !granted { // as if it had been refused what it does not ask for before
			j.clients.forbidden.Store(true)
		}
		return granted, nil
	})
}

// acting is the work of a controller, which begins when it may and its definitions are there.
func (j *Join) acting(role roles.Role, work func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		if j.awaitOwnCRDs(ctx) == nil {
			j.permitted(role, work)(ctx)
		}
	}
}

// permitted is work that begins when the role may do it.
func (j *Join) permitted(role roles.Role, work func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		if j.awaitPermitted(ctx, role) == nil {
			work(ctx)
		}
	}
}
