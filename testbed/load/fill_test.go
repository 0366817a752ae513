package load

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// answers is a resource that answers creations with errors, one after the other, and then with none.
type answers struct {
	dynamic.ResourceInterface
	errs []error
}

func (a *answers) Create(context.Context, *unstructured.Unstructured, metav1.CreateOptions, ...string) (*unstructured.Unstructured, error) {
	if len(a.errs) == 0 {
		return nil, nil
	}
	err := a.errs[0]
	a.errs = a.errs[1:]
	return nil, err
}

// TestCreate: a creation is tried again if etcd was late, and then may have been made before; other errors
// are returned.
func TestCreate(t *testing.T) {
	late, exists, other := apierrors.NewInternalError(errors.New("etcdserver: request timed out")), apierrors.NewAlreadyExists(schema.GroupResource{}, "a"), errors.New("other")
	for name, test := range map[string]struct {
		errs []error
		want error
	}{
		"made":               {nil, nil},
		"late once":          {[]error{late}, nil},
		"late and made":      {[]error{late, exists}, nil},
		"there before":       {[]error{exists}, exists},
		"another error":      {[]error{other}, other},
		"late, then another": {[]error{late, other}, other},
		"late for ever":      {[]error{late, late, late, late, late, late, late}, late},
	} {
		if err := Create(t.Context(), &answers{errs: test.errs}, &unstructured.Unstructured{}); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}
