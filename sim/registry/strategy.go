package registry

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// StoredBy returns the version that a definition stores, "" if it says none.
func StoredBy(crd *apiextensionsv1.CustomResourceDefinition) string {
	version, _ := apihelpers.GetCRDStorageVersion(crd)
	return version
}

// unchanged is optimistic concurrency.
func unchanged(k Kind, old client.Object, uid types.UID, resourceVersion string) error {
	switch {
	case uid != "" && uid != old.GetUID():
		return apierrors.NewConflict(k.Resource(), old.GetName(), errors.New("the UID in the precondition is not the object's"))
	case resourceVersion != "" && resourceVersion != old.GetResourceVersion():
		return apierrors.NewConflict(k.Resource(), old.GetName(), errors.New("the object has been modified"))
	}
	return nil
}

// prepare is the strategies' part of an update. The stored object stays as it is:
// the new object may share with the old one the parts in which neither is changed.
func prepare(obj, old client.Object, status bool) error {
	switch s := obj.(type) {
	case *v1alpha1.StorageVersion:
		before := old.(*v1alpha1.StorageVersion)
		if status {
			storageversion.PrepareStatusUpdate(s, before)
		} else {
			storageversion.PrepareUpdate(s, before)
		}
		return valid(s)
	case *migrationv1alpha1.StorageState:
		before := old.(*migrationv1alpha1.StorageState)
		if status {
			s.ObjectMeta, s.Spec = before.ObjectMeta, before.Spec
		} else {
			s.Status = before.Status
		}
		s.Status.LastHeartbeatTime = seconds(s.Status.LastHeartbeatTime)
	case *migrationv1alpha1.StorageVersionMigration:
		before := old.(*migrationv1alpha1.StorageVersionMigration)
		if !status {
			s.Status, s.Spec = before.Status, before.Spec
			return nil
		}
		s.ObjectMeta, s.Spec = before.ObjectMeta, before.Spec
		for i := range s.Status.Conditions {
			s.Status.Conditions[i].LastUpdateTime = seconds(s.Status.Conditions[i].LastUpdateTime)
		}
	case *apiextensionsv1.CustomResourceDefinition:
		return prepareDefinition(s, old.(*apiextensionsv1.CustomResourceDefinition), status)
	}
	return nil
}

// prepareDefinition does as apiextensions' strategies: the storage version is always
// among the stored versions, and no stored version may be missing from the spec.
func prepareDefinition(crd, before *apiextensionsv1.CustomResourceDefinition, status bool) error {
	if status {
		crd.ObjectMeta, crd.Spec = before.ObjectMeta, before.Spec
	} else {
		crd.Status = before.Status
		crd.Generation = before.Generation
		if StoredBy(crd) != StoredBy(before) {
			crd.Generation++
		}
		if now := StoredBy(crd); !slices.Contains(crd.Status.StoredVersions, now) {
			crd.Status.StoredVersions = append(slices.Clone(crd.Status.StoredVersions), now)
		}
	}
	if !slices.Contains(crd.Status.StoredVersions, StoredBy(crd)) {
		return apierrors.NewInvalid(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition").GroupKind(), crd.Name, nil)
	}
	return nil
}

// seconds is a time as it is after it was stored: in whole seconds.
func seconds(t metav1.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// valid is the part of a StorageVersion's validation that the protocol leans on.
func valid(sv *v1alpha1.StorageVersion) error {
	reports := storageversion.Reports(sv)
	err := agree.Validate(reports)
	common, agreed := agree.Common(reports)
	if stated, says := storageversion.AgreementOn(sv, reports); err == nil && (says != agreed || stated != common) {
		err = fmt.Errorf("commonEncodingVersion is %q, and reports make it %q", stated, common)
	}
	if err != nil {
		return apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("StorageVersion").GroupKind(), sv.Name, nil)
	}
	return nil
}
