// Package owncrds installs CustomResourceDefinitions of the project's own.
package owncrds

import (
	"context"
	"fmt"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RevisionAnnotation, on a definition of the project's own, is the revision of its spec. Who changes the spec, however
// little, increases it by one, so that of two builds each knows which has the newer spec.
const RevisionAnnotation = "concord.dev/definition-revision"

// Install installs definitions and brings older ones up to date. It leaves those of newer builds as they are.
func Install(ctx context.Context, c client.Client, crds []*apiextensionsv1.CustomResourceDefinition) error {
	for _, want := range crds {
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error { return ensure(ctx, c, want) }); err != nil {
			return fmt.Errorf("CustomResourceDefinition %s: %w", want.Name, err)
		}
	}
	return nil
}

func ensure(ctx context.Context, c client.Client, want *apiextensionsv1.CustomResourceDefinition) error {
	var have apiextensionsv1.CustomResourceDefinition
	err := c.Get(ctx, client.ObjectKeyFromObject(want), &have)
	if apierrors.IsNotFound(err) {
		err = c.Create(ctx, want)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	stored := want.DeepCopy() // with the API server's defaults
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(stored)
	newer := revision(&have) > revision(want)
	if newer || revision(&have) == revision(want) && equality.Semantic.DeepEqual(stored.Spec, have.Spec) {
		return nil
	}
	have.Spec = want.Spec
	metav1.SetMetaDataAnnotation(&have.ObjectMeta, RevisionAnnotation, want.Annotations[RevisionAnnotation])
	return c.Update(ctx, &have)
}

// revision is 0 for a definition of a build that wrote none.
func revision(crd *apiextensionsv1.CustomResourceDefinition) int {
	n, _ := strconv.Atoi(crd.Annotations[RevisionAnnotation])
	return n
}
