package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// pageOf returns a page of so many objects, each with an annotation of so many bytes.
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

// TestListOfLarge: the number of bytes in a page is bounded, also if large objects follow small ones.
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

// TestPagesOfLarge: the proof and the cleaning of managedFields list as many objects at a time as their size
// permits.
func TestPagesOfLarge(t *testing.T) {
	for _, test := range []struct {
		each int
		want []int
	}{{100, []int{25, 50, 100, 100, 100}}, {240_000, slices.Concat([]int{25}, slices.Repeat([]int{8}, 34))}} {
		var limits []int
		listed := 0
		annotations := map[string]string{"applied": strings.Repeat("z", test.each)}
		list := func(limit int, from string) (*metav1.PartialObjectMetadataList, error) {
			limits = append(limits, limit)
			begin, _ := strconv.Atoi(from)
			page := &metav1.PartialObjectMetadataList{Items: make([]metav1.PartialObjectMetadata, min(limit, 297-begin))}
			for i := range page.Items {
				page.Items[i].Annotations = annotations
			}
			if end := begin + len(page.Items); end < 297 {
				page.Continue = strconv.Itoa(end)
			}
			return page, nil
		}
		err := Pages(t.Context(), 100, list, func() {}, func(items []metav1.PartialObjectMetadata) error {
			listed += len(items)
			return nil
		})
		if err != nil || listed != 297 || !slices.Equal(limits, test.want) {
			t.Errorf("of objects of %d bytes %d were listed, in pages of %v, expected %v: %v", test.each, listed, limits, test.want, err)
		}
	}
}

// TestTelling: only patches that wrote are told. If the returned resourceVersion is the one that was sent, the patch
// changed nothing.
func TestTelling(t *testing.T) {
	now := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, fmt.Sprintf(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":%q}}`, now))
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL})
	must(t, err)
	var told []string
	client = client.Telling(func(resourceVersion string) { told = append(told, resourceVersion) })
	for _, now = range []string{"7", "9", "7"} {
		if err := client.Patch(t.Context(), schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
			types.NamespacedName{Name: "x"}, []byte(`{"metadata":{"uid":"u","resourceVersion":"7"}}`)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(told, []string{"9"}) {
		t.Errorf("told are the writes %v", told)
	}
}

// TestGentle: a server can work on so many patches at a time, and each takes 4 ms. Few more than these are under
// way, or, with the bound most, as many as make patches longer by no more than that.
func TestGentle(t *testing.T) {
	for name, test := range map[string]struct {
		of          gentle
		processors  float64
		least, most float64
	}{
		"two":                   {gentle{}, 2, 2, 4},
		"eight":                 {gentle{}, 8, 8, 10},
		"one":                   {gentle{}, 1, 1, 2.5},
		"half as long again":    {gentle{most: 2 * time.Millisecond}, 8, 9, 13},
		"as many as there may":  {gentle{}, 1000, 32, 32},
		"eight times as long":   {gentle{most: 28 * time.Millisecond}, 2, 8, 17},
		"it is bound to be one": {gentle{most: 1}, 0.1, 1, 1},
	} {
		w := window{limit: 1, most: 32, gentle: &test.of}
		now := time.Unix(0, 0)
		for range 5500 {
			took := time.Duration(float64(4*time.Millisecond) * max(1, float64(w.now())/test.processors))
			now = now.Add(took)
			w = w.taken(now, took)
		}
		if w.limit < test.least || w.limit > test.most {
			t.Errorf("%s: %v under way, want %v to %v", name, w.limit, test.least, test.most)
		}
	}
}

// TestGentleSlow: if each patch takes seconds, for example because of a slow webhook, only few patches are made one
// at a time to measure how long one takes alone.
func TestGentleSlow(t *testing.T) {
	g, now := gentle{}, time.Unix(0, 0)
	after := func(took time.Duration) {
		now = now.Add(took)
		g = g.after(now, took)
	}
	for range leastRested {
		if !g.rests() {
			t.Fatal("it does not rest at first")
		}
		after(20 * time.Second)
	}
	if g.rests() || g.base != 20*time.Second || g.grows(1) != 1 {
		t.Errorf("after %d patches of 20 s it rests: %t, and knows of %v", leastRested, g.rests(), g.base)
	}
	for !g.rests() {
		after(20 * time.Second)
	}
	// Patches that were sent before the rest began ran beside others, so they do not end it.
	for range 2 * leastRested {
		g = g.after(now, 80*time.Second)
	}
	if !g.rests() {
		t.Error("patches of before the rest have ended it")
	}
	after(10 * time.Second)
	after(10 * time.Second)
	if g.rests() || g.base != 10*time.Second {
		t.Errorf("it rests: %t, and knows of %v", g.rests(), g.base)
	}
}

// TestGentleAgain: if patches take longer because the server has become slower, and not because they wait for each
// other, a rest finds that out: a patch alone takes as long.
func TestGentleAgain(t *testing.T) {
	g, now := gentle{}, time.Unix(0, 0)
	after := func(took time.Duration) {
		now = now.Add(took)
		g = g.after(now, took)
	}
	for range restEvery {
		after(time.Millisecond)
	}
	for range rested - 1 {
		after(5 * time.Millisecond)
	}
	if g.base != time.Millisecond || !g.rests() {
		t.Errorf("base is %v in a rest", g.base)
	}
	for range 100 {
		after(5 * time.Millisecond)
	}
	if g.base != 5*time.Millisecond || g.rests() || g.grows(1) != 1 {
		t.Errorf("base is %v behind it, usual %v", g.base, g.usual)
	}
}
