package stock

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/controller/throughapi"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
)

// TestProvingIsTold: the progress during the proof has the numbers of the whole rewrite and its last
// position.
func TestProvingIsTold(t *testing.T) {
	got := proving(claim.Progress{Total: 9, Done: 9}, claim.Progress{Total: 9, Done: 5, Checkpoint: claim.Checkpoint{Position: "here"}})
	if !got.Proving || got.Done != 9 || got.Checkpoint.Position != "here" {
		t.Errorf("it is %+v", got)
	}
}

// TestGivesWay: the latency in a migration's spec comes before the controllers' flag, and 0 means full
// speed.
func TestGivesWay(t *testing.T) {
	none, five, ten := time.Duration(0), 5*time.Millisecond, 10*time.Millisecond
	for name, test := range map[string]struct {
		flag, said *time.Duration
		want       migrateapi.Options
	}{
		"nothing said":           {nil, nil, migrateapi.Options{Gentle: true}},
		"the flag":               {&five, nil, migrateapi.Options{Gentle: true, MaxAdded: five}},
		"the flag's full speed":  {&none, nil, migrateapi.Options{}},
		"the migration":          {&five, &ten, migrateapi.Options{Gentle: true, MaxAdded: ten}},
		"the migration's only":   {nil, &ten, migrateapi.Options{Gentle: true, MaxAdded: ten}},
		"its own full speed":     {&five, &none, migrateapi.Options{}},
		"the flag is overridden": {&none, &ten, migrateapi.Options{Gentle: true, MaxAdded: ten}},
	} {
		m := &migrator{maxAdded: test.flag, maxParallel: 7}
		test.want.MaxParallel, test.want.PageSize = 7, pageSize
		if got := m.options(claim.Job{MaxAddedLatency: test.said}); got.Gentle != test.want.Gentle || got.MaxAdded != test.want.MaxAdded ||
			got.MaxParallel != 7 || got.PageSize != pageSize {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// TestJobOf: objects are patched in the stored version, also if it is not served.
func TestJobOf(t *testing.T) {
	for _, served := range []bool{true, false} {
		crd := widgetDefinition("a", 2, "v2", "v1", "v2")
		crd.Spec.Versions[1].Served = served
		if job := jobOf(crd, "example.com/v2"); !slices.Equal(job.Versions, []string{"v2", "v1"}) {
			t.Errorf("served %t: %v", served, job.Versions)
		}
	}
}

// TestThroughStatus: objects are patched through the status subresource where the stored version has one, and else directly.
func TestThroughStatus(t *testing.T) {
	const objects = 5
	for _, has := range []bool{true, false} {
		s := startWidgets(t, objects, "v1")
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/status") != has {
				s.reply(w, r, nil, apierrors.NewForbidden(widgets, r.URL.Path, errors.New("not like this")))
				return
			}
			s.answer(w, r, "v2")
		}))
		defer server.Close()
		crd := widgetDefinition("a", 2, "v2", "v1", "v2")
		if has {
			crd.Spec.Versions[1].Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		}
		m, err := newMigrator(newTestObserver(t, crd), Config{Rest: &rest.Config{Host: server.URL}})
		must(t, err)
		result, err := throughapi.Run(t.Context(), migrateapi.New(m.api), widgetJob, m.options(widgetJob), func(claim.Progress) {})
		if err != nil || result.Done != objects || result.Failed > 0 {
			t.Errorf("with a status %t: %+v, %v", has, result, err)
		}
	}
}
