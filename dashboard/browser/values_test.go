package browser

import (
	"fmt"
	"strings"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

// versionOf is the StorageVersion of a custom resource that servers store in a version.
func versionOf(resource, version string, servers ...string) apiserverinternalv1alpha1.StorageVersion {
	gr := schema.ParseGroupResource(resource)
	encoding := gr.Group + "/" + version
	sv := apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{
		Name: storageversion.Name(gr), UID: types.UID("u-" + resource),
		Annotations: map[string]string{"concord.dev/epoch": "1", "concord.dev/encoding-epochs": fmt.Sprintf(`{%q:1}`, encoding)},
	}}
	var reports []agree.Report
	for _, server := range servers {
		reports = append(reports, agree.Report{Server: agree.ServerID(server), Encoding: agree.Encoding(encoding), Decodable: []string{encoding}})
	}
	storageversion.SetReports(&sv, reports, metav1.Time{})
	return sv
}

// stateOf is the StorageState of such a resource whose objects may be in versions, of which the
// last is agreed on.
func stateOf(resource string, versions ...string) migrationv1alpha1.StorageState {
	gr := schema.ParseGroupResource(resource)
	s := migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: resource}}
	s.Spec.Resource = migrationv1alpha1.GroupResource{Group: gr.Group, Resource: gr.Resource}
	var stored []agree.Encoding
	for _, v := range versions {
		stored = append(stored, agree.Encoding(gr.Group+"/"+v))
	}
	migrationv1alpha1.SetState(&s, evolve.State{Of: evolve.Ref{UID: "u-" + resource, Epoch: 1}, Stored: stored, Current: stored[len(stored)-1]}, strings.ToUpper(gr.Resource))
	return s
}
