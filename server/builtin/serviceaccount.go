package builtin

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func serviceAccountStorage(k kind, g generics) (stores, error) {
	s := newStrategy[*corev1.ServiceAccount](true)
	s.unconditional = true
	s.prepareCreate = func(_ context.Context, sa *corev1.ServiceAccount) { dropSecretFields(sa) }
	s.prepareUpdate = func(_ context.Context, sa, _ *corev1.ServiceAccount) { dropSecretFields(sa) }
	store, err := newREST(k, g, s, traits[*corev1.ServiceAccount]{
		singular:   "serviceaccount",
		shortNames: []string{"sa"},
		columns: []column[*corev1.ServiceAccount]{{
			name: "Secrets", typ: "string", description: corev1.ServiceAccount{}.SwaggerDoc()["secrets"],
			cell: func(sa *corev1.ServiceAccount, _ time.Time) any { return int64(len(sa.Secrets)) },
		}},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

// dropSecretFields keeps only the names of the secrets referred to.
func dropSecretFields(sa *corev1.ServiceAccount) {
	for i, secret := range sa.Secrets {
		sa.Secrets[i] = corev1.ObjectReference{Name: secret.Name}
	}
}
