package api

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPagesOfLarge: the proof and the cleaning of managedFields list as many objects at a time as their size allows.
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
