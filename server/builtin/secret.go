package builtin

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func secretStorage(k kind, g generics) (stores, error) {
	s := newStrategy[*corev1.Secret](true)
	s.unconditional = true
	s.prepareCreate = func(_ context.Context, secret *corev1.Secret) { mergeStringData(secret) }
	s.prepareUpdate = func(_ context.Context, secret, old *corev1.Secret) {
		mergeStringData(secret)
		if secret.Type == "" {
			secret.Type = old.Type
		}
	}
	s.validate = func(_ context.Context, secret *corev1.Secret) field.ErrorList { return validateSecret(secret) }
	s.validateUpdate = func(_ context.Context, secret, old *corev1.Secret) field.ErrorList {
		return append(validateSecretUpdate(secret, old), validateSecret(secret)...)
	}
	store, err := newREST(k, g, s, traits[*corev1.Secret]{
		singular: "secret",
		columns: []column[*corev1.Secret]{
			{
				name: "Type", typ: "string", description: corev1.Secret{}.SwaggerDoc()["type"],
				cell: func(secret *corev1.Secret, _ time.Time) any { return string(secret.Type) },
			},
			{
				name: "Data", typ: "string", description: corev1.Secret{}.SwaggerDoc()["data"],
				cell: func(secret *corev1.Secret, _ time.Time) any { return int64(len(secret.Data)) },
			},
		},
		fields: func(secret *corev1.Secret) fields.Set { return fields.Set{"type": string(secret.Type)} },
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

func defaultSecret(secret *corev1.Secret) {
	if secret.Type == "" {
		secret.Type = corev1.SecretTypeOpaque
	}
}

// mergeStringData moves the write-only stringData into data.
func mergeStringData(secret *corev1.Secret) {
	if len(secret.StringData) > 0 && secret.Data == nil {
		secret.Data = make(map[string][]byte, len(secret.StringData))
	}
	for key, value := range secret.StringData {
		secret.Data[key] = []byte(value)
	}
	secret.StringData = nil
}

// validateSecret checks keys, size, and what the well-known types must hold.
func validateSecret(secret *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	size := 0
	for key, value := range secret.Data {
		errs = append(errs, validateDataKey(data, key)...)
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(data, "", corev1.MaxSecretSize))
	}
	required := func(keys ...string) {
		for _, key := range keys {
			if _, ok := secret.Data[key]; !ok {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
	}
	switch secret.Type {
	case corev1.SecretTypeServiceAccountToken:
		if secret.Annotations[corev1.ServiceAccountNameKey] == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		required(corev1.DockerConfigKey)
		errs = append(errs, validateJSON(secret, corev1.DockerConfigKey)...)
	case corev1.SecretTypeDockerConfigJson:
		required(corev1.DockerConfigJsonKey)
		errs = append(errs, validateJSON(secret, corev1.DockerConfigJsonKey)...)
	case corev1.SecretTypeBasicAuth:
		_, user := secret.Data[corev1.BasicAuthUsernameKey]
		_, password := secret.Data[corev1.BasicAuthPasswordKey]
		if !user && !password {
			required(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(secret.Data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(data.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		required(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return errs
}

func validateJSON(secret *corev1.Secret, key string) field.ErrorList {
	value, ok := secret.Data[key]
	if !ok || json.Valid(value) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("data").Key(key), "<secret contents redacted>", "must be valid JSON")}
}

func validateSecretUpdate(secret, old *corev1.Secret) field.ErrorList {
	errs := validation.ValidateImmutableField(secret.Type, old.Type, field.NewPath("type"))
	if old.Immutable == nil || !*old.Immutable {
		return errs
	}
	if secret.Immutable == nil || !*secret.Immutable {
		errs = append(errs, whileImmutable("immutable"))
	}
	if !equality.Semantic.DeepEqual(secret.Data, old.Data) {
		errs = append(errs, whileImmutable("data"))
	}
	return errs
}
