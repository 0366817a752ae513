package builtin

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
)

// sameLayout says whether values of the two types have the same memory layout and the
// same field names, so that one can be read as the other.
func sameLayout(path string, a, b reflect.Type) error {
	if a == b {
		return nil
	}
	if a.Kind() != b.Kind() {
		return fmt.Errorf("%s: %v and %v differ in kind", path, a, b)
	}
	switch a.Kind() {
	case reflect.Struct:
		if a.NumField() != b.NumField() {
			return fmt.Errorf("%s: %v has %d fields, %v has %d", path, a, a.NumField(), b, b.NumField())
		}
		for i := range a.NumField() {
			x, y := a.Field(i), b.Field(i)
			if x.Name != y.Name {
				return fmt.Errorf("%s: field %d is %s in %v and %s in %v", path, i, x.Name, a, y.Name, b)
			}
			if err := sameLayout(path+"."+x.Name, x.Type, y.Type); err != nil {
				return err
			}
		}
	case reflect.Pointer, reflect.Slice:
		return sameLayout(path, a.Elem(), b.Elem())
	case reflect.Map:
		if err := sameLayout(path, a.Key(), b.Key()); err != nil {
			return err
		}
		return sameLayout(path, a.Elem(), b.Elem())
	case reflect.Array, reflect.Chan, reflect.Func, reflect.Interface:
		return fmt.Errorf("%s: %v and %v are not the same type", path, a, b)
	}
	return nil
}

// addReinterpretation registers conversions both ways between two types of the same
// layout. Like generated conversions, they share what the input points to.
func addReinterpretation(scheme *runtime.Scheme, a, b runtime.Object) error {
	ta, tb := reflect.TypeOf(a).Elem(), reflect.TypeOf(b).Elem()
	if err := sameLayout(ta.Name(), ta, tb); err != nil {
		return fmt.Errorf("no conversion between %v and %v: %w", ta, tb, err)
	}
	reinterpret := func(in, out any, _ conversion.Scope) error {
		to := reflect.ValueOf(out).Elem()
		to.Set(viewAs(in, to.Type()).Elem())
		return nil
	}
	if err := scheme.AddConversionFunc(a, b, reinterpret); err != nil {
		return err
	}
	return scheme.AddConversionFunc(b, a, reinterpret)
}

// viewAs returns a pointer of type *t to what in points to. The layouts must be the same.
func viewAs(in any, t reflect.Type) reflect.Value {
	return reflect.NewAt(t, reflect.ValueOf(in).UnsafePointer())
}
