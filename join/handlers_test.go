package join

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// TestStoresNothing: connections, tokens and dry runs are told from what is stored.
func TestStoresNothing(t *testing.T) {
	t.Parallel()
	resolver := &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	for _, test := range []struct {
		method, path string
		want         bool
	}{
		{http.MethodPost, "/api/v1/namespaces/d/serviceaccounts/s/token", true},
		{http.MethodPost, "/api/v1/namespaces/d/pods/p/exec", true},
		{http.MethodPost, "/api/v1/namespaces/d/services/s/proxy/some/path", true},
		{http.MethodPut, "/api/v1/nodes/n/proxy/", true},
		{http.MethodPatch, "/apis/apps/v1/namespaces/d/deployments/d?fieldManager=x&dryRun=All", true},
		{http.MethodPatch, "/apis/apps/v1/namespaces/d/deployments/d?dryRun=", false},
		{http.MethodPost, "/api/v1/namespaces/d/serviceaccounts", false},
		{http.MethodPost, "/api/v1/namespaces/d/pods/p/eviction", false},
		{http.MethodPut, "/apis/example.com/v1/namespaces/d/pods/p/proxy", false},
	} {
		r := httptest.NewRequest(test.method, test.path, nil)
		info, err := resolver.NewRequestInfo(r)
		must(t, err)
		got, ok := describe(r.WithContext(apirequest.WithRequestInfo(r.Context(), info)))
		if !ok || got.StoresNothing != test.want {
			t.Errorf("%s %s: %+v, %t", test.method, test.path, got, ok)
		}
	}
}

// The reason that an alert names tells a restored etcd, with which servers are to be restarted, from one that is away.
func TestRefusal(t *testing.T) {
	err := errors.New("etcd")
	for want, got := range map[string]string{"EtcdRestored": refusalOf(err, err), "EtcdUnwritable": refusalOf(nil, err), "NotReported": refusalOf(nil, nil)} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
