package controllers

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/join/elect"
)

const (
	// LockName is the Lease in kube-system by which one server is elected to run the controllers.
	LockName = "concord-kubernetes-controllers"

	// rolesCheck passes when the roles exist that give the controllers their rights.
	rolesCheck = "/readyz/poststarthook/rbac/bootstrap-roles"
	rolesPoll  = 100 * time.Millisecond
	retryPause = time.Second
)

// Campaign makes the server of this identity run for election until ctx ends, as kube-controller-manager does, and run
// the controllers while it is elected. An elected server stays so for duration without a renewal. Campaign returns
// when the last term has ended. The Lease is written as the server itself, because a stopping server refuses other
// users' writes before its last term ends.
func Campaign(ctx context.Context, config Config, identity string, duration time.Duration) {
	own, err := kubernetes.NewForConfig(config.Client)
	if err != nil {
		klog.FromContext(ctx).Error(err, "No controllers run in this server")
		return
	}
	if awaitRoles(ctx, own.RESTClient()) != nil {
		return // it ends with ctx
	}
	term := func(ctx context.Context) {
		if err := Run(ctx, config); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Kubernetes' controllers did not start; they are tried again")
		}
	}
	elected := elect.Election{
		Client: own.CoordinationV1(), Lock: LockName, Identity: identity, Duration: duration,
		Lead: func(ctx context.Context) { wait.UntilWithContext(ctx, term, retryPause) },
	}
	elected.Campaign(ctx)
}

// awaitRoles returns when the controllers have their rights: before, they would only be refused.
func awaitRoles(ctx context.Context, client rest.Interface) error {
	return wait.PollUntilContextCancel(ctx, rolesPoll, true, func(ctx context.Context) (bool, error) {
		var code int
		err := client.Get().AbsPath(rolesCheck).Do(ctx).StatusCode(&code).Error()
		// There is no such check where rights do not come from roles.
		return err == nil || code == http.StatusNotFound || apierrors.IsNotFound(err), nil
	})
}
