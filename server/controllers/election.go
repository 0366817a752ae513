package controllers

import (
	"context"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const (
	// LockName is the Lease in kube-system by which one server is elected to run the controllers.
	LockName = "concord-kubernetes-controllers"

	// rolesCheck passes when the roles exist that give the controllers their rights.
	rolesCheck = "/readyz/poststarthook/rbac/bootstrap-roles"
	rolesPoll  = 100 * time.Millisecond
	retryPause = time.Second
)

// Election elects one server of a cluster to run the controllers.
type Election struct {
	// Client reaches this server as one that may write the Lease.
	Client *rest.Config
	// Identity is this server's ID.
	Identity string
	// Duration is how long the elected one keeps the lock without renewing it.
	Duration time.Duration
	// Lead is a term: it runs the controllers until its context ends. One that returns earlier
	// is begun again.
	Lead func(context.Context)

	// serving is held during a term: client-go does not wait for the end of the last one
	// before it begins another.
	serving sync.Mutex
}

// Campaign runs for election until ctx ends. It returns when the last term has ended.
func (e *Election) Campaign(ctx context.Context) {
	client, err := kubernetes.NewForConfig(e.Client)
	if err != nil {
		klog.FromContext(ctx).Error(err, "No controllers run in this server")
		return
	}
	if err := awaitRoles(ctx, client.RESTClient()); err != nil {
		return // it ends with ctx
	}
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: controllersNamespace, Name: LockName},
				Client:     client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
			},
			LeaseDuration:   e.Duration,
			RenewDeadline:   e.Duration * 2 / 3,
			RetryPeriod:     e.Duration / 6,
			ReleaseOnCancel: true,
			Name:            LockName,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: e.serve,
				OnStoppedLeading: func() {},
			},
		})
	}
	e.serving.Lock()
	defer e.serving.Unlock()
}

// serve is one term.
func (e *Election) serve(ctx context.Context) {
	e.serving.Lock()
	defer e.serving.Unlock()
	wait.UntilWithContext(ctx, e.Lead, retryPause)
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
