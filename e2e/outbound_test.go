package e2e

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/e2e/cluster"
)

// A server that is not told otherwise goes to no port of its own host for a Service, here one
// whose name leads there, be it for a conversion webhook or for an aggregated API. Webhooks by
// URL are for administrators to choose, and go there.
func TestServicesOfOwnHost(t *testing.T) {
	t.Parallel()
	const refusal = "--allow-loopback-services"
	hook := startConverter(t)
	c := cluster.New(t)
	s := c.Start(cluster.Options{Args: refusal + "=false"}, "cautious")[0]
	crd := hook.behindService(s, convertibleCRD(hook))
	createCRD(t, crd, s)
	fill(t, s, convertiblesV1, 1)
	asV2 := func() error {
		_, err := s.Dynamic().Resource(convertibles.WithVersion("v2")).List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := asV2(); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("a conversion webhook on the server's host is called: %v", err)
	}

	_, text, err := net.SplitHostPort(hook.address)
	must(t, err)
	port, err := strconv.ParseInt(text, 10, 32)
	must(t, err)
	registered, err := apiregistrationclient.NewForConfig(s.Config())
	must(t, err)
	service := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.inside.example.com"}}
	service.Spec = apiregistrationv1.APIServiceSpec{
		Group: "inside.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 100, CABundle: cluster.EncodePEM(hook.ca.Cert.Raw),
		Service: &apiregistrationv1.ServiceReference{Namespace: metav1.NamespaceDefault, Name: converterService, Port: ptr.To(int32(port))},
	}
	if _, err := registered.APIServices().Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, time.Minute, "the APIService says why it is not available", func(ctx context.Context) error {
		found, err := registered.APIServices().Get(ctx, service.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range found.Status.Conditions {
			if c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionFalse && strings.Contains(c.Message, refusal) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", found.Status.Conditions)
	})
	if n := hook.calls(); n > 0 {
		t.Errorf("%d calls got through", n)
	}

	byURL := convertibleCRD(hook).Spec.Conversion
	cluster.Eventually(t, time.Minute, "the webhook is called by its URL", func(ctx context.Context) error {
		present := &apiextensionsv1.CustomResourceDefinition{}
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(crd), present); err != nil {
			return err
		}
		present.Spec.Conversion = byURL
		if err := s.Objects().Update(ctx, present); err != nil {
			return err
		}
		return asV2()
	})
	if hook.calls() == 0 {
		t.Error("a webhook by URL is not called")
	}
}

// calls is how many calls it has answered.
func (c *converter) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered
}
