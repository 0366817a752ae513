package observed

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCleanFields(t *testing.T) {
	for _, tc := range []struct {
		name       string
		have, want []string
		changed    bool
	}{
		{"nothing", nil, nil, false},
		{"all are served", []string{"example.com/v1", "example.com/v2"}, []string{"example.com/v1", "example.com/v2"}, false},
		{"one is not", []string{"example.com/v1", "example.com/v0"}, []string{"example.com/v1"}, true},
		{"none is", []string{"example.com/v0"}, []string{"example.com/v2"}, true},
		{"another group's", []string{"other.example.com/v0", "v0"}, []string{"other.example.com/v0", "v0"}, false},
	} {
		var entries []metav1.ManagedFieldsEntry
		for _, v := range tc.have {
			entries = append(entries, metav1.ManagedFieldsEntry{Manager: "m", APIVersion: v})
		}
		cleaned, changed := CleanFields(entries, "example.com", []string{"v1", "v2"}, "v2")
		var got []string
		for _, e := range cleaned {
			got = append(got, e.APIVersion)
		}
		if !slices.Equal(got, tc.want) || changed != tc.changed {
			t.Errorf("%s: %v, %v; want %v, %v", tc.name, got, changed, tc.want, tc.changed)
		}
	}
}
