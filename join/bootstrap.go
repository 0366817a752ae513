package join

import (
	"context"
	"errors"
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
)

// permissionPoll is how often it is asked whether a controller may begin: soon at first, since roles reach the authorizer with
// a delay, and every five seconds in the end.
var permissionPoll = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 1.3, Steps: 20, Cap: 5 * time.Second}

// bootstrap keeps the objects that the controllers need, and has the controllers wait for them.
type bootstrap struct {
	config  Config
	clients *clients
	crds    *definitions
}

// start is the post-start hook that creates the objects that the controllers need: their CustomResourceDefinitions
// and their permissions. Deleted ones are created again as long as the server runs. The objects of a deleted
// definition are lost, so that everything is proven again.
func (b *bootstrap) start(hook genericapiserver.PostStartHookContext) error {
	go workers.Loop(hook, "bootstrap", b.keepOwn)
	return nil
}

// keepOwn makes the own objects until ctx ends.
func (b *bootstrap) keepOwn(ctx context.Context) {
	if b.ensureOwn(ctx) != nil || b.awaitOwnCRDs(ctx) != nil {
		return // ctx has ended
	}
	var looked, viewed time.Time
	var saidOfView, saidOfRoles string
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		now := time.Now()
		if now.Sub(looked) >= rolesRest && b.clients.forbidden.Swap(false) {
			looked = now
			b.restoreRoles(ctx, &saidOfRoles)
		}
		if b.config.RBAC && now.Sub(viewed) >= rolesRest {
			viewed = now
			b.keepView(ctx, &saidOfView)
		}
		if b.lacksOwnCRD() {
			klog.FromContext(ctx).Info("A definition of Concord's own was deleted and is made again: all that is stored will be proven anew")
			_ = b.ensureOwn(ctx) // ends with ctx
		}
	}, ownCRDsCheck)
}

// keepView creates the ClusterRole for people who read, if it is missing. Nothing in the server depends on it, and no
// refused request would show that it is missing. said is the last logged error, which is not logged again.
func (b *bootstrap) keepView(ctx context.Context, said *string) {
	text := ""
	if err := roles.EnsureView(b.clients.kube); err != nil {
		text = err.Error()
	}
	if text != "" && text != *said {
		klog.FromContext(ctx).Info("The role that lets people use kubectl concord cannot be made, and is tried again each minute", "err", text)
	}
	*said = text
}

// restoreRoles repairs the roles of the controllers if one of them lacks a permission. said is the last logged error,
// which is not logged again.
func (b *bootstrap) restoreRoles(ctx context.Context, said *string) {
	for _, role := range roles.All {
		denied := role.Granted(ctx, b.clients.kube)
		if ctx.Err() != nil || denied == nil {
			continue
		}
		changed, err := roles.Ensure(b.clients.kube)
		if changed {
			*said = ""
			klog.FromContext(ctx).Info("Roles of Concord's own controllers, or their bindings, were deleted or changed: what was missing is made again", "user", role.User(), "err", err)
			return
		}
		if err = errors.Join(denied, err); role.User()+err.Error() != *said {
			*said = role.User() + err.Error()
			klog.FromContext(ctx).Info("A controller of Concord's own is not seen to have its permissions, and no role of it could be made again: one is annotated with rbac.authorization.kubernetes.io/autoupdate: \"false\", another authorizer refuses it, or it cannot be asked: an admission webhook may refuse SubjectAccessReviews", "user", role.User(), "err", err)
		}
		return
	}
	*said = ""
}

// ensureOwn tries until it succeeds or ctx ends, since at first the server's own and other
// servers' gates may be closed.
func (b *bootstrap) ensureOwn(ctx context.Context) error {
	var last error
	began, said := time.Now(), ""
	err := wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(ctx context.Context) (bool, error) {
		last = owncrds.Install(ctx, b.clients.objects, b.ownCRDs())
		if b.config.RBAC {
			_, err := roles.Ensure(b.clients.kube)
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
func (b *bootstrap) ownCRDs() []*apiextensionsv1.CustomResourceDefinition {
	if b.config.Silent {
		return versionv1alpha1.CRDs()
	}
	return append(migrationv1alpha1.CRDs(), versionv1alpha1.CRDs()...)
}

func (b *bootstrap) lacksOwnCRD() bool {
	for _, want := range b.ownCRDs() {
		if b.crds.get(schema.ParseGroupResource(want.Name)) == nil {
			return true
		}
	}
	return false
}

// awaitOwnCRDs returns when the server's own definitions are established, or ctx ends.
func (b *bootstrap) awaitOwnCRDs(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(context.Context) (bool, error) {
		for _, want := range b.ownCRDs() {
			crd := b.crds.get(schema.ParseGroupResource(want.Name))
			if crd == nil || !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
				return false, nil
			}
		}
		return true, nil
	})
}

// awaitPermitted returns when a controller may do what it does, or ctx ends.
func (b *bootstrap) awaitPermitted(ctx context.Context, role roles.Role) error {
	if !b.config.RBAC {
		return nil
	}
	return permissionPoll.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		granted := role.Granted(ctx, b.clients.kube) == nil
		if !granted { // as if it had been refused what it does not ask for before
			b.clients.forbidden.Store(true)
		}
		return granted, nil
	})
}

// acting is the work of a controller, which begins when it may and its definitions are there.
func (b *bootstrap) acting(role roles.Role, work func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		if b.awaitOwnCRDs(ctx) == nil {
			b.permitted(role, work)(ctx)
		}
	}
}

// permitted is work that begins when the role may do it.
func (b *bootstrap) permitted(role roles.Role, work func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		if b.awaitPermitted(ctx, role) == nil {
			work(ctx)
		}
	}
}
