package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// pageOf is a page of so many objects, each with an annotation of so many bytes.
func pageOf(objects, bytes int) *metav1.PartialObjectMetadataList {
	page := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
	page.Items = make([]metav1.PartialObjectMetadata, objects)
	for i := range page.Items {
		page.Items[i].Annotations = map[string]string{"applied": strings.Repeat("z", bytes)}
	}
	return page
}

func TestNextPage(t *testing.T) {
	for _, test := range []struct{ objects, bytes, most, want int }{
		{FirstPage, 1000, 100, 2 * FirstPage},
		{50, 1000, 100, 100},
		{100, 1000, 100, 100},
		{100, 1000, 500, 200},
		{100, 20_000, 100, 100},
		{25, 240_000, 100, 8},
		{8, 240_000, 100, 8},
		{8, 1000, 100, 16},
		{1, 1_500_000, 100, 1},
		{1, 10_000_000, 100, 1},
		{0, 0, 100, 1},
	} {
		if got := nextPage(pageOf(test.objects, test.bytes), test.most); got != test.want {
			t.Errorf("%d objects of %d bytes are followed by %d, of %d at most, expected %d", test.objects, test.bytes, got, test.most, test.want)
		}
	}
}

// TestListOfLarge: what is read of a page is bounded also where large objects stand behind small ones.
func TestListOfLarge(t *testing.T) {
	var limits []int
	each := 240_000
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if from := r.URL.Query().Get("continue"); err != nil || from != "there" {
			t.Errorf("%v, continued at %q", err, from)
		}
		limits = append(limits, limit)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(pageOf(limit, each)) // the client may hang up
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL})
	must(t, err)
	for _, test := range []struct {
		each int
		want []int
	}{{1000, []int{100}}, {240_000, []int{100, 50, 25, 12}}, {5 << 20, []int{100, 50, 25, 12, 6, 3, 1}}} {
		limits, each = nil, test.each
		list, err := client.List(t.Context(), target.WithVersion("v1"), 100, "there")
		if last := test.want[len(test.want)-1]; err != nil || len(list.Items) != last || !slices.Equal(limits, test.want) {
			t.Errorf("of objects of %d bytes the limits were %v: %d objects, %v", test.each, limits, len(list.Items), err)
		}
	}
}
