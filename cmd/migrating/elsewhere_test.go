package migrating

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestEstimateElsewhere: of a resource that is stored elsewhere only the known facts are told, and
// other resources have their rows beside it.
func TestEstimateElsewhere(t *testing.T) {
	gr := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	const through = "it is migrated through the API"
	for name, test := range map[string]struct {
		agreed    string
		objects   *int64
		err       error
		row, says string
	}{
		"counted":     {"example.com/v2", ptr.To[int64](150), nil, `150 objects, to be in example.com/v2`, through},
		"empty":       {"example.com/v2", ptr.To[int64](0), nil, `0 objects, to be in example.com/v2`, through},
		"not counted": {"example.com/v2", nil, nil, `- objects, to be in example.com/v2`, through},
		"not agreed":  {migrationv1alpha1.Unknown, ptr.To[int64](150), nil, `150 objects, to be in what servers will agree on`, through},
		"away":        {"example.com/v2", nil, errors.New("connection refused"), `- objects, to be in example.com/v2`, through + ", and cannot be listed: connection refused"},
		"not served":  {"example.com/v2", nil, errNotServed, `- objects, to be in example.com/v2`, errNotServed.Error()},
	} {
		e := ofElsewhere(gr, test.agreed, test.objects, test.err)
		text := estimateTable([]estimate{e, (&migrateOptions{}).of(census.Resource{Resource: "empty"})})
		table := regexp.MustCompile(`\s+`).ReplaceAllString(text, " ")
		for _, want := range []string{"widgets.example.com " + test.row + " ", "nothing is stored of 1 resources ", " widgets.example.com is stored elsewhere: " + test.says + ". Its bytes and encodings"} {
			if !strings.Contains(table, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
		raw, err := json.Marshal(e)
		must(t, err)
		if !strings.Contains(string(raw), `"bytes":null,"rewrite":null,"encodings":[],"expectedSeconds":null,"objectsPerSecond":null,"basis":"unknown"`) {
			t.Errorf("%s: JSON %s", name, raw)
		}
	}
	if raw, err := json.Marshal((&migrateOptions{}).of(census.Resource{Resource: "empty"})); err != nil || strings.Contains(string(raw), "null") || strings.Contains(string(raw), "elsewhere") {
		t.Errorf("of a resource that is stored the JSON is %s, %v", raw, err)
	}
}

// TestNoCensus: only a server's word that it has no store of the resource means that. All
// other errors end the dry run.
func TestNoCensus(t *testing.T) {
	gr := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	censuses := schema.GroupResource{Group: "concord.dev", Resource: "census"}
	for name, test := range map[string]struct {
		answer *apierrors.StatusError
		want   bool
	}{
		"no store":            {apierrors.NewNotFound(censuses, gr.String()), true},
		"no store of another": {apierrors.NewNotFound(censuses, "gadgets.example.com"), false},
		"another thing":       {apierrors.NewNotFound(gr, gr.String()), false},
		"forbidden":           {apierrors.NewForbidden(censuses, gr.String(), errors.New("no")), false},
		"broken":              {apierrors.NewInternalError(errors.New("etcd")), false},
		"no such path":        {nil, false},
	} {
		asked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if test.answer == nil {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			status := test.answer.Status()
			status.Kind, status.APIVersion = "Status", "v1"
			w.WriteHeader(int(status.Code))
			_ = json.NewEncoder(w).Encode(status) // the client is gone
		}))
		_, err := TakeCensus(t.Context(), &rest.Config{Host: asked.URL}, gr, Envelopes)
		if err == nil || census.IsNotStored(err, gr) != test.want {
			t.Errorf("%s: %v is taken for no store: %v", name, err, !test.want)
		}
		asked.Close()
	}
}

func TestCountOf(t *testing.T) {
	one := []metav1.PartialObjectMetadata{{}}
	for name, test := range map[string]struct {
		list metav1.PartialObjectMetadataList
		want *int64
	}{
		"none":     {metav1.PartialObjectMetadataList{}, ptr.To[int64](0)},
		"one":      {metav1.PartialObjectMetadataList{Items: one}, ptr.To[int64](1)},
		"many":     {metav1.PartialObjectMetadataList{Items: one, ListMeta: metav1.ListMeta{Continue: "x", RemainingItemCount: ptr.To[int64](149)}}, ptr.To[int64](150)},
		"not told": {metav1.PartialObjectMetadataList{Items: one, ListMeta: metav1.ListMeta{Continue: "x"}}, nil},
	} {
		if got := countOf(&test.list); !ptr.Equal(got, test.want) {
			t.Errorf("%s: counted %s, want %s", name, orDash(got), orDash(test.want))
		}
	}
}
