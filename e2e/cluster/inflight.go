package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// MaxInflight has a server without priority and fairness answer only so many requests at a time. With it, the number would
// add to that of --max-mutating-requests-inflight.
const MaxInflight = "--enable-priority-and-fairness=false --max-requests-inflight=20"

// WaitOverload waits until a server with the flags MaxInflight answers one request too many with 429. The user is one who
// may list ConfigMaps.
func WaitOverload(t testing.TB, admin *rest.Config, user string) {
	t.Helper()
	config := rest.CopyConfig(admin)
	config.QPS, config.Impersonate.UserName = -1, user // administrators are answered in any case
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	EventuallyEach(t, time.Minute, 20*time.Second, "one request too many is answered with 429", func(ctx context.Context) error {
		const n = 21
		first := make(chan error, n)
		for range n {
			go func() { // the answer takes 3 s: this revision does not come
				first <- client.CoreV1().RESTClient().Get().Resource("configmaps").Param("resourceVersion", fmt.Sprint(int64(1)<<62)).MaxRetries(0).Do(ctx).Error()
			}()
		}
		if err := <-first; !apierrors.IsTooManyRequests(err) {
			return fmt.Errorf("the first answer is %w", err)
		}
		return nil
	})
}
