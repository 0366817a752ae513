package builtin

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"time"
)

func configMapStorage(k kind, g generics) (stores, error) {
	s := newStrategy[*corev1.ConfigMap](true)
	s.unconditional = true
	s.validate = func(_ context.Context, cm *corev1.ConfigMap) field.ErrorList { return validateConfigMap(cm) }
	s.validateUpdate = func(_ context.Context, cm, old *corev1.ConfigMap) field.ErrorList {
		return append(validateConfigMapUpdate(cm, old), validateConfigMap(cm)...)
	}
	store, err := newREST(k, g, s, traits[*corev1.ConfigMap]{
		singular:   "configmap",
		shortNames: []string{"cm"},
		columns: []column[*corev1.ConfigMap]{{
			name: "Data", typ: "string", description: corev1.ConfigMap{}.SwaggerDoc()["data"],
			cell: func(cm *corev1.ConfigMap, _ time.Time) any { return int64(len(cm.Data) + len(cm.BinaryData)) },
		}},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

// validateConfigMap checks keys, that no key is in both maps, and the size.
func validateConfigMap(cm *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for key, value := range cm.Data {
		errs = append(errs, validateDataKey(field.NewPath("data"), key)...)
		if _, twice := cm.BinaryData[key]; twice {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, "duplicate of key present in binaryData"))
		}
		size += len(value)
	}
	for key, value := range cm.BinaryData {
		errs = append(errs, validateDataKey(field.NewPath("binaryData"), key)...)
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}

func validateDataKey(path *field.Path, key string) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(path.Key(key), key, msg))
	}
	return errs
}

func validateConfigMapUpdate(cm, old *corev1.ConfigMap) field.ErrorList {
	if old.Immutable == nil || !*old.Immutable {
		return nil
	}
	var errs field.ErrorList
	if cm.Immutable == nil || !*cm.Immutable {
		errs = append(errs, whileImmutable("immutable"))
	}
	if !maps.Equal(cm.Data, old.Data) {
		errs = append(errs, whileImmutable("data"))
	}
	if !equality.Semantic.DeepEqual(cm.BinaryData, old.BinaryData) {
		errs = append(errs, whileImmutable("binaryData"))
	}
	return errs
}

func whileImmutable(name string) *field.Error {
	return field.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set")
}
