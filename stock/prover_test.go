package stock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/stock/observed"
)

func TestProve(t *testing.T) {
	for _, tc := range []struct {
		name     string
		all      bool
		objects  int
		old      int // the number of the object that is not migrated
		versions []string
		checked  int
		holds    bool
		says     string
	}{
		{"few objects", false, 3, -1, []string{"v2", "v2"}, 3, true, "of 3 objects"},
		{"a sample of many", false, sampleSize + 501, -1, []string{"v2", "v2"}, sampleSize, true, ""},
		{"all of them", true, sampleSize + 501, -1, []string{"v2", "v2"}, sampleSize + 501, true, ""},
		{"all of them, and one is left over", true, sampleSize + 501, sampleSize + 7, []string{"v2", "v2"}, sampleSize + 501, false, "empty patches changed 1 of 1501 objects: default/w01007 ("},
		{"replicas write different versions", true, 7, -1, []string{"v2", "v1"}, 7, false, "kube-apiservers write it differently); and 2 more"},
	} {
		s := startWidgets(t, tc.objects, tc.versions...)
		if tc.old >= 0 {
			s.objects[tc.old].stored = "v1"
		}
		proof, err := s.prove(tc.all, exam{})
		if err != nil || proof.Checked != tc.checked || proof.Holds() != tc.holds || !strings.Contains(proof.String(), tc.says) {
			t.Errorf("%s: %d were checked: %s, %v", tc.name, proof.Checked, proof, err)
		}
		if tc.holds && s.patches != tc.checked*len(tc.versions) {
			t.Errorf("%s: %d patches of %d objects", tc.name, s.patches, tc.checked)
		}
	}
}

// TestProveExpired: a list whose continue token has expired goes on with a new token, or begins again, and ends.
func TestProveExpired(t *testing.T) {
	const objects = sampleSize + 10
	for _, tc := range []struct {
		name    string
		all     bool
		tooOld  func(from, times int) error
		checked int
		fails   bool
	}{
		{"another token is given", true, func(from, _ int) error { return tooOld(fmt.Sprint(from, "-fresh")) }, objects, false},
		{"none is given, once", true, func(_, times int) error {
			if times > 1 {
				return nil
			}
			return tooOld("")
		}, objects + migrateapi.FirstPage, false},
		{"none is given, once, to a sample", false, func(_, times int) error {
			if times > 1 {
				return nil
			}
			return tooOld("")
		}, sampleSize, false},
		{"none is given, ever", true, func(int, int) error { return tooOld("") }, 0, true},
		{"the tokens that are given are too old, ever", true, func(_, times int) error { return tooOld(fmt.Sprint(pageSize + times)) }, 0, true},
	} {
		s := startWidgets(t, objects, "v2")
		times := 0
		s.listed = func(from int) error {
			if from == 0 {
				return nil
			}
			times++
			return tc.tooOld(from, times)
		}
		proof, err := s.prove(tc.all, exam{})
		if (err != nil) != tc.fails || proof.Checked != tc.checked || s.lists > 40 {
			t.Errorf("%s: %d were checked, by %d lists: %v", tc.name, proof.Checked, s.lists, err)
		}
	}
}

// TestProveTakesTurns: the limit per second is for patches; each object takes one for each kube-apiserver.
func TestProveTakesTurns(t *testing.T) {
	s := startWidgets(t, 20, "v2", "v2", "v2")
	var turns, done atomic.Int64
	_, err := s.prove(false, exam{turn: func(context.Context) (func(error), error) {
		turns.Add(1)
		return func(error) { done.Add(1) }, nil
	}})
	if n := int(turns.Load()); err != nil || n != 60 || n != s.patches || n != int(done.Load()) {
		t.Errorf("%d turns for %d patches, of which %d ended, %v", n, s.patches, done.Load(), err)
	}
}

// TestProveAsStored: the proof lists and patches in the stored version only, also if a list in it fails at first.
func TestProveAsStored(t *testing.T) {
	s := startWidgets(t, 20, "v2", "v2")
	busy := 2
	s.listed = func(int) error {
		if busy--; busy >= 0 {
			return apierrors.NewServiceUnavailable("starting")
		}
		return nil
	}
	proof, err := s.prove(false, exam{})
	if err != nil || proof.Checked != 20 || !proof.Holds() || s.asked["v2"] == 0 || len(s.asked) > 1 {
		t.Errorf("%s, %v, with requests %v", proof, err, s.asked)
	}
}

// TestProveLater: an object that was written after the rewrite is found, also if it is not in the sample. The last
// look patches only such objects, and the first of them through every kube-apiserver.
func TestProveLater(t *testing.T) {
	const objects = sampleSize + 501
	for _, tc := range []struct {
		name    string
		last    bool
		later   int
		patches int
	}{
		{"in the proof", false, 1, 2*sampleSize + 1},
		{"in the last look", true, 1, 2},
		{"after many in the last look", true, sampleSize + 10, 2*sampleSize + 10},
		{"nothing", true, 0, 0},
	} {
		s := startWidgets(t, objects, "v2", "v2")
		since := fmt.Sprint(s.revision)
		for range tc.later {
			s.create("v2")
		}
		later := observed.NewOwnWrites(since).Later
		proof, err := s.prove(false, exam{last: tc.last, later: later})
		if err != nil || !proof.Holds() || s.patches != tc.patches {
			t.Errorf("%s: %d patches: %s, %v", tc.name, s.patches, proof, err)
		}
		if tc.later == 0 {
			continue
		}
		s.objects[objects+tc.later-1].stored = "v1"
		if proof, err := s.prove(false, exam{last: tc.last, later: later}); err != nil || proof.Holds() {
			t.Errorf("%s: an object in v1: %s, %v", tc.name, proof, err)
		}
	}
}

// TestProveNotServed: a kube-apiserver that does not serve the version, or its status, yet may still write the old
// version. So its 404 does not mean that an object is deleted. A 404 that names the object does not keep the others
// from being asked.
func TestProveNotServed(t *testing.T) {
	missing := func(s *widgetServers, w http.ResponseWriter, r *http.Request) {
		s.reply(w, r, nil, apierrors.NewNotFound(widgets, strings.Split(r.URL.Path, "/")[7]))
	}
	for _, tc := range []struct {
		name   string
		answer func(*widgetServers, http.ResponseWriter, *http.Request)
		says   string
	}{
		{"the version is not served", func(_ *widgetServers, w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "404 page not found", http.StatusNotFound)
		}, "(0 refuses it: it does not serve v2/widgets/status)"},
		{"its status is not", func(s *widgetServers, w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/status") {
				missing(s, w, r)
				return
			}
			s.answer(w, r, "v2")
		}, "(0 refuses it: it does not serve v2/widgets/status)"},
		{"its namespace is gone", func(s *widgetServers, w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPatch {
				s.reply(w, r, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x"))
				return
			}
			s.answer(w, r, "v2")
		}, `(0 refuses it: namespaces "x" not found)`},
		{"objects are gone", missing, "(b wrote it anew: "},
	} {
		for _, last := range []bool{false, true} {
			s := startWidgets(t, 3, "v2", "v1")
			api := s.prover(true)
			crd := widgetDefinition("a", 2, "v2", "v1", "v2")
			for i := range crd.Spec.Versions {
				crd.Spec.Versions[i].Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
			}
			api.observer.definitions.take(crd)
			lagging := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tc.answer(s, w, r) }))
			t.Cleanup(lagging.Close)
			first := observed.Replica{Process: observed.Process{Lease: "0", Holder: "1"}, Address: strings.TrimPrefix(lagging.URL, "https://")}
			proof, _, err := api.prove(t.Context(), widgetJob, exam{
				replicas: append([]observed.Replica{first}, s.replicas...), turn: atOnce, last: last, later: func(string) bool { return true },
			})
			if err != nil || proof.Holds() || !strings.Contains(proof.String(), tc.says) {
				t.Errorf("%s, in the last look %v: %s, %v", tc.name, last, proof, err)
			}
		}
	}
}

// TestProveBusy: an object that clients write while a patch waits for its turn is read again just before the patch.
// An object that clients write all the time, even then, may be stored in any version.
func TestProveBusy(t *testing.T) {
	for _, always := range []bool{false, true} {
		s := startWidgets(t, 1, "v2")
		written := func() {
			s.revision++
			s.objects[0].revision = s.revision
		}
		s.patched = func(int) error {
			if always {
				written()
			}
			return nil
		}
		proof, err := s.prove(true, exam{turn: func(context.Context) (func(error), error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			written()
			return func(error) {}, nil
		}})
		if err != nil || proof.Holds() == always || proof.Moved > 0 || always && !strings.Contains(proof.String(), "a refuses it: others wrote it 10 times") {
			t.Errorf("after its turn, too, %v: %s, %v", always, proof, err)
		}
	}
}

// TestProveLostAnswer: a patch that was done and whose answer was lost counts as having changed the object.
func TestProveLostAnswer(t *testing.T) {
	s := startWidgets(t, 1, "v2")
	s.objects[0].stored = "v1"
	s.patched = func(int) error {
		if s.patches > 1 {
			return nil
		}
		s.revision++
		s.objects[0].stored, s.objects[0].revision = "v2", s.revision
		return apierrors.NewInternalError(errors.New("etcd does not answer"))
	}
	proof, err := s.prove(true, exam{})
	if err != nil || proof.Moved != 1 || !strings.Contains(proof.String(), string(observed.Leftover)) {
		t.Errorf("%s, %v", proof, err)
	}
}

// TestProveNotAdmission: the proof says that admission changes an object only if a kube-apiserver changed what it had
// written itself. It does not say so if clients write the object, if kube-apiservers write different versions, or if
// answers are lost.
func TestProveNotAdmission(t *testing.T) {
	for name, tc := range map[string]struct {
		versions []string // the versions that kube-apiservers write
		client   string   // the version in which clients have stored the object
		patched  func(patches int) error
		says     observed.Cause
	}{
		"replicas write it differently": {[]string{"v2", "v1"}, "v1", func(int) error { return nil }, observed.Disagreement},
		"every second patch fails": {[]string{"v2", "v2"}, "v2", func(patches int) error {
			if patches%2 == 0 {
				return nil
			}
			return apierrors.NewInternalError(errors.New(`failed calling webhook "w.ex.io": context deadline exceeded`))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := startWidgets(t, 1, tc.versions...)
			s.patched = func(int) error { return tc.patched(s.patches) }
			proof, err := s.prove(true, exam{turn: func(context.Context) (func(error), error) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.revision++
				s.objects[0].stored, s.objects[0].revision = tc.client, s.revision
				return func(error) {}, nil
			}})
			if err != nil || proof.Moved != 1 || proof.Unsteady > 0 || !strings.Contains(proof.String(), string(tc.says)) {
				t.Errorf("%d are changed by admission: %s, %v", proof.Unsteady, proof, err)
			}
		})
	}
}

// atOnce is a turn without waiting.
func atOnce(ctx context.Context) (func(error), error) { return func(error) {}, ctx.Err() }
