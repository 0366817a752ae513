// Package storedtest gives tests an etcd to put stored values into by hand, and the stored
// sets of a cluster in which all is well.
package storedtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// Etcd is one whose every case has a prefix of its own.
type Etcd struct {
	*clientv3.Client
	cases int
}

// Start starts an etcd for as long as the test lasts.
func Start(t *testing.T) *Etcd {
	t.Helper()
	sockets, err := os.MkdirTemp("", "stored") // short enough for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	client := url.URL{Scheme: "unix", Path: filepath.Join(sockets, "s")}
	etcd, err := etcdtest.Start(etcdtest.Config(t.TempDir(), client))
	must(t, err)
	t.Cleanup(etcd.Close)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{client.String()}, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &Etcd{Client: c}
}

// Fill writes the values, whose keys are without prefix, and returns the prefix.
func (e *Etcd) Fill(t *testing.T, values map[string]string) (prefix string) {
	t.Helper()
	e.cases++
	prefix = fmt.Sprintf("/case%d", e.cases)
	for keys := range slices.Chunk(slices.Collect(maps.Keys(values)), 100) {
		var puts []clientv3.Op
		for _, key := range keys {
			puts = append(puts, clientv3.OpPut(prefix+"/"+key, values[key]))
		}
		_, err := e.Txn(t.Context()).Then(puts...).Commit()
		must(t, err)
	}
	return prefix
}

// Target decodes a few built-in resources: of admissionregistration.k8s.io's
// mutatingadmissionpolicies three versions, and events under both their groups.
func Target(t *testing.T) *compat.Target { return plan(t).Target() }

func plan(t *testing.T) *compat.Plan {
	t.Helper()
	const admission = "admissionregistration.k8s.io"
	of := func(group, version, resource, kind string) compat.Lifecycle {
		return compat.Lifecycle{GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: resource}, Kind: kind}
	}
	events := of("events.k8s.io", "v1", "events", "Event")
	events.NotPersisted = true // it shares the store of the core group's
	p, err := compat.NewPlan([]compat.Lifecycle{
		of("", "v1", "configmaps", "ConfigMap"), of("", "v1", "events", "Event"), of("", "v1", "namespaces", "Namespace"),
		of("", "v1", "secrets", "Secret"), of("", "v1", "services", "Service"), events,
		of("coordination.k8s.io", "v1", "leases", "Lease"),
		of(admission, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
		of(admission, "v1beta1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
		of(admission, "v1alpha1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
	}, compat.Options{})
	must(t, err)
	return p
}

// Agreed are the values of a cluster that stores every resource of Target as planned, with
// a StorageState and a StorageVersion for each. The StorageVersions are as servers write
// them.
func Agreed(t *testing.T) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, r := range plan(t).Resources {
		if r.Storage.Empty() {
			continue
		}
		gr, encoding := schema.GroupResource{Group: r.Group, Resource: r.Resource}, agree.Encoding(r.Storage.String())
		values[StateKey(gr)] = State(t, gr, 1, encoding)
		values[VersionKey(gr)] = Version(t, gr, agree.History{Epoch: 1, Last: map[agree.Encoding]int64{encoding: 1}})
	}
	return values
}

// StateKey is the key of a resource's StorageState, without prefix.
func StateKey(gr schema.GroupResource) string {
	return "migration.k8s.io/storagestates/" + migrationv1alpha1.StateName(gr)
}

// VersionKey is the key of a resource's StorageVersion, without prefix.
func VersionKey(gr schema.GroupResource) string { return "storageversions/" + storageversion.Name(gr) }

func uidOf(gr schema.GroupResource) types.UID { return types.UID("uid-of-" + gr.String()) }

// State is a StorageState with these encodings in its stored set, the last one current.
func State(t *testing.T, gr schema.GroupResource, epoch int64, stored ...agree.Encoding) string {
	t.Helper()
	state := &migrationv1alpha1.StorageState{TypeMeta: metav1.TypeMeta{APIVersion: migrationv1alpha1.SchemeGroupVersion.String(), Kind: "StorageState"}}
	state.Name = migrationv1alpha1.StateName(gr)
	state.Spec.Resource = migrationv1alpha1.GroupResource{Group: gr.Group, Resource: gr.Resource}
	migrationv1alpha1.SetState(state, evolve.State{Of: evolve.Ref{UID: string(uidOf(gr)), Epoch: epoch}, Stored: stored, Current: stored[len(stored)-1]}, "Kind")
	value, err := json.Marshal(state)
	must(t, err)
	return string(value)
}

// Version is a StorageVersion, in protobuf.
func Version(t *testing.T, gr schema.GroupResource, history agree.History, reports ...agree.Report) string {
	t.Helper()
	sv := &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(gr), UID: uidOf(gr)}}
	storageversion.SetHistory(sv, history)
	storageversion.SetReports(sv, reports, metav1.Now())
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("no protobuf")
	}
	var value bytes.Buffer
	must(t, scheme.Codecs.EncoderForVersion(info.Serializer, apiserverinternalv1alpha1.SchemeGroupVersion).Encode(sv, &value))
	return value.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
