package builtin

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/concord-dev/concord/compat"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// storedAs is a plan that serves everything and stores in the version at an index of each
// kind's list, or its last one.
type storedAs int

func (storedAs) Served(schema.GroupVersionResource) bool { return true }

func (i storedAs) Storage(gr schema.GroupResource) (schema.GroupVersion, bool) {
	for _, k := range kinds() {
		if k.GroupResource == gr {
			return k.groupVersion(k.versions[min(int(i), len(k.versions)-1)]), true
		}
	}
	return schema.GroupVersion{}, false
}

// TestRoundTrip: every field of every persisted kind survives being stored in each version.
func TestRoundTrip(t *testing.T) {
	for i := range 3 {
		factory := StorageFactory(storedAs(i), storagebackend.Config{})
		for _, k := range kinds() {
			if k.transient || k.shares() || i >= len(k.versions) {
				continue
			}
			config, err := factory.NewConfig(k.GroupResource, nil)
			if err != nil {
				t.Fatal(err)
			}
			obj := newOf(k.versions[0].object)()
			fill(reflect.ValueOf(obj).Elem(), "x")
			obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			// What is write-only is not stored, what has a default is given it.
			if secret, ok := obj.(*corev1.Secret); ok {
				secret.StringData = nil
			}
			Scheme.Default(obj)
			want := obj.DeepCopyObject()
			data, err := runtime.Encode(config.Codec, obj)
			if err != nil {
				t.Fatalf("%s in %s: %v", k.GroupResource, k.versions[i].version, err)
			}
			var envelope runtime.Unknown
			if err := envelope.Unmarshal(data[4:]); err != nil || envelope.APIVersion != k.groupVersion(k.versions[i]).String() || envelope.Kind != k.Kind {
				t.Errorf("%s is stored as %s %s, %v, want %s", k.GroupResource, envelope.APIVersion, envelope.Kind, err, k.groupVersion(k.versions[i]))
			}
			got := newOf(k.versions[0].object)()
			for _, into := range []runtime.Object{got, nil} {
				decoded, _, err := config.Codec.Decode(data, nil, into)
				if err != nil {
					t.Fatalf("%s in %s: %v", k.GroupResource, k.versions[i].version, err)
				}
				if !equality.Semantic.DeepEqual(decoded, want) {
					t.Errorf("%s stored as %s comes back as\n%+v, want\n%+v", k.GroupResource, k.versions[i].version, decoded, want)
				}
			}
		}
	}
}

// TestEventRoundTrip: every field of an event survives the other group's version.
func TestEventRoundTrip(t *testing.T) {
	for _, pair := range [][2]runtime.Object{
		{&corev1.Event{}, &eventsv1.Event{}}, {&eventsv1.Event{}, &corev1.Event{}},
		{&corev1.EventList{}, &eventsv1.EventList{}}, {&eventsv1.EventList{}, &corev1.EventList{}},
	} {
		want, there, back := pair[0], pair[1], newOf(pair[0])()
		fill(reflect.ValueOf(want).Elem(), "x")
		clearTypeMeta(want)
		if err := Scheme.Convert(want, there, nil); err != nil {
			t.Fatal(err)
		}
		if err := Scheme.Convert(there, back, nil); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(back, want) {
			t.Errorf("%T comes back as\n%+v, want\n%+v", want, back, want)
		}
	}
}

func clearTypeMeta(obj runtime.Object) {
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	switch list := obj.(type) {
	case *corev1.EventList:
		for i := range list.Items {
			list.Items[i].TypeMeta = metav1.TypeMeta{}
		}
	case *eventsv1.EventList:
		for i := range list.Items {
			list.Items[i].TypeMeta = metav1.TypeMeta{}
		}
	}
}

// fill sets every field to a value of its own.
func fill(v reflect.Value, path string) {
	moment := time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC)
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.NewTime(moment.Truncate(time.Second))))
		return
	case metav1.MicroTime:
		v.Set(reflect.ValueOf(metav1.NewMicroTime(moment)))
		return
	case metav1.FieldsV1:
		v.Set(reflect.ValueOf(metav1.FieldsV1{Raw: []byte(`{"f:x":{}}`)}))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(path)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(len(path)))
	case reflect.Uint8:
		v.SetUint(uint64(len(path) % 256))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), fmt.Sprint(path, i))
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, path+"k")
		fill(value, path+"v")
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), path+v.Type().Field(i).Name)
		}
	default:
		panic(fmt.Sprintf("no value for %s of type %v", path, v.Type()))
	}
}

func TestSameLayout(t *testing.T) {
	type inner struct{ A string }
	type other struct{ A string }
	type renamed struct{ B string }
	for _, tc := range []struct {
		a, b any
		want string // part of the error
	}{
		{struct{ X inner }{}, struct{ X other }{}, ""},
		{struct{ X []*inner }{}, struct{ X []*other }{}, ""},
		{struct{ X map[string]inner }{}, struct{ X map[string]other }{}, ""},
		{struct{ X []inner }{}, struct{ X []renamed }{}, "x.X: field 0 is A in"},
		{struct{ X int32 }{}, struct{ X int64 }{}, "x.X: int32 and int64 differ in kind"},
		{struct{ X, Y string }{}, struct{ X string }{}, "has 2 fields"},
		{struct{ X, Y string }{}, struct{ Y, X string }{}, "field 0 is X in"},
		{struct{ X any }{}, struct{ X fmt.Stringer }{}, "are not the same type"},
	} {
		err := sameLayout("x", reflect.TypeOf(tc.a), reflect.TypeOf(tc.b))
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%T and %T: %v", tc.a, tc.b, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%T and %T: error %v, want one with %q", tc.a, tc.b, err, tc.want)
		}
	}
}

// TestPlanOfAnotherBinary: a storage version that is not among our types is refused.
func TestPlanOfAnotherBinary(t *testing.T) {
	if _, err := Install(foreign{}, nil, Deps{}); err == nil || !strings.Contains(err.Error(), "authorizer") {
		t.Errorf("no authorizer: %v", err)
	}
	deps := Deps{Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()}
	if _, err := Install(foreign{}, nil, deps); err == nil || !strings.Contains(err.Error(), "minimum compatibility") {
		t.Errorf("no minimum compatibility version: %v", err)
	}
	deps.MinCompatibility = compat.BinaryVersion()
	if _, err := Install(foreign{}, nil, deps); err == nil || !strings.Contains(err.Error(), "feature gates") {
		t.Errorf("no feature gates: %v", err)
	}
	deps.Features = utilfeature.DefaultFeatureGate
	if _, err := Install(foreign{}, nil, deps); err == nil || !strings.Contains(err.Error(), "cannot decode") {
		t.Errorf("a storage version without types: %v", err)
	}
}

type foreign struct{ storedAs }

func (foreign) Storage(gr schema.GroupResource) (schema.GroupVersion, bool) {
	return schema.GroupVersion{Group: gr.Group, Version: "v9"}, true
}
