package registry

import (
	"reflect"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// fill gives every field a value, down to a depth: pointers are not nil, and slices and maps have
// entries. A field for which skip returns true is left out.
func fill(v reflect.Value, depth int, skip func() bool) {
	if depth == 0 || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7)
	case reflect.String:
		v.SetString("text")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth-1, skip)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 4))
		for i := range v.Len() {
			fill(v.Index(i), depth-1, skip)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth-1, skip)
		fill(value, depth-1, skip)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if !skip() {
				fill(v.Field(i), depth-1, skip)
			}
		}
	}
}

// places collects the addresses of all memory behind a value that can be changed.
func places(v reflect.Value, found map[uintptr]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && v.Type().Elem().Size() > 0 && v.Type().Elem() != reflect.TypeFor[time.Location]() {
			found[v.Pointer()] = true
			places(v.Elem(), found)
		}
	case reflect.Slice:
		if v.Cap() > 0 {
			found[v.Pointer()] = true
		}
		for i := range v.Len() {
			places(v.Index(i), found)
		}
	case reflect.Map:
		if !v.IsNil() {
			found[v.Pointer()] = true
		}
		for _, key := range v.MapKeys() {
			places(v.MapIndex(key), found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			places(v.Field(i), found)
		}
	}
}

// TestCopies: a copy is equal to the original and shares no memory with it, whatever fields the
// original has.
func TestCopies(t *testing.T) {
	for _, empty := range []client.Object{
		&v1alpha1.StorageVersion{}, &coordinationv1.Lease{}, &apiextensionsv1.CustomResourceDefinition{},
		&migrationv1alpha1.StorageState{}, &migrationv1alpha1.StorageVersionMigration{},
	} {
		for every := range 12 {
			n := 0
			obj := reflect.New(reflect.TypeOf(empty).Elem())
			fill(obj.Elem(), 8, func() bool { n++; return every > 0 && n%every == 1 })
			original := obj.Interface().(client.Object)
			before := original.DeepCopyObject()
			// CopyInto replaces all fields of an object that has values already.
			used := reflect.New(reflect.TypeOf(empty).Elem())
			fill(used.Elem(), 8, func() bool { return false })
			CopyInto(original, used.Interface().(client.Object))
			for _, c := range []client.Object{CopyOf(original), used.Interface().(client.Object)} {
				if !reflect.DeepEqual(c, before) || !reflect.DeepEqual(original, before) {
					t.Errorf("the copy of %+v is %+v", original, c)
				}
				mine, its := map[uintptr]bool{}, map[uintptr]bool{}
				places(reflect.ValueOf(original), mine)
				places(reflect.ValueOf(c), its)
				for place := range its {
					if mine[place] {
						t.Fatalf("a copy of a %T shares memory with it", empty)
					}
				}
			}
		}
	}
}
