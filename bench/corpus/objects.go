package corpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/load"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	CustomGroup = "bench.concord.dev"
	CRDPath     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	JSONType    = "application/json"

	// payloadBytes makes an object about 1 KiB as it is stored.
	payloadBytes = 600
	UsableLimit  = 60 * time.Second
	// CalmPoll is the time between two checks of a condition if the time until it holds is not
	// measured, or the machine is busy; ExactPoll is the time between two if it is measured.
	CalmPoll  = 100 * time.Millisecond
	ExactPoll = 10 * time.Millisecond
)

var payload = strings.Repeat("0123456789abcdef", payloadBytes/16)

// Fields are the fields of an object, as in JSON.
type Fields = map[string]any

// Marshal never fails for the values that this program writes.
func Marshal(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// Definition is the CRD of cluster-scoped custom resources with the versions v1 and v2,
// both served.
func Definition(plural, storage string) *apiextensionsv1.CustomResourceDefinition {
	crd := cluster.Definition(schema.GroupResource{Group: CustomGroup, Resource: plural}, storage)
	crd.TypeMeta = metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"}
	crd.Spec.Scope = apiextensionsv1.ClusterScoped
	spec := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"payload": {Type: "string"}, "sequence": {Type: "integer"}}}
	for i := range crd.Spec.Versions { // as most definitions have
		crd.Spec.Versions[i].Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec}}
	}
	return crd
}

func KindOf(plural string) string {
	return strings.ToUpper(plural[:1]) + strings.TrimSuffix(plural[1:], "s")
}

func CustomPath(plural, version string) string {
	return "/apis/" + CustomGroup + "/" + version + "/" + plural
}

// Custom is a custom resource of about 1 KiB.
func Custom(plural, version, name string, sequence int) Fields {
	return Fields{
		"apiVersion": CustomGroup + "/" + version, "kind": KindOf(plural),
		"metadata": Fields{"name": name},
		"spec":     Fields{"payload": payload, "sequence": sequence},
	}
}

// ConfigMap is a ConfigMap of about 1 KiB.
func ConfigMap(name string, sequence int) Fields {
	return Fields{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": Fields{"name": name},
		"data":     Fields{"payload": payload, "sequence": fmt.Sprint(sequence)},
	}
}

// Policy is a MutatingAdmissionPolicy of about 1 KiB.
func Policy(name string) Fields {
	policy := Fields{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": Fields{"name": name}}
	load.Policies().Fill(policy, payload)
	return policy
}

// Identity is the part of an object that a client needs to write the object again.
type Identity struct {
	Metadata struct {
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
}

func IdentityOf(body []byte) (Identity, error) {
	var id Identity
	err := json.Unmarshal(body, &id)
	if err == nil && id.Metadata.ResourceVersion == "" {
		err = errors.New("the answer has no resourceVersion")
	}
	return id, err
}

// AwaitBootstrap waits until the default namespace exists and the resources of migration.k8s.io are served.
func AwaitBootstrap(ctx context.Context, c *stage.Client) error {
	return Eventually(ctx, "the cluster's own objects exist", func(ctx context.Context) error {
		for _, path := range []string{"/api/v1/namespaces/default", migrationsPath, "/apis/migration.k8s.io/v1alpha1/storagestates"} {
			if _, err := c.Do(ctx, http.MethodGet, path, "", nil); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	})
}

// CreateCRD creates a CRD and waits until its objects can be listed through every client.
func CreateCRD(ctx context.Context, clients []*stage.Client, plural, storage string) error {
	if err := PostCRD(ctx, clients[0], plural, storage); err != nil {
		return err
	}
	return Eventually(ctx, "the CRD of "+plural+" is served", func(ctx context.Context) error {
		for _, c := range clients {
			if _, err := c.Do(ctx, http.MethodGet, CustomPath(plural, storage), "", nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// PostCRD creates a CRD and does not wait until its objects can be listed: a list would make a
// server keep them in memory from then on.
func PostCRD(ctx context.Context, c *stage.Client, plural, storage string) error {
	if _, err := c.Do(ctx, http.MethodPost, CRDPath, JSONType, Marshal(Definition(plural, storage))); err != nil {
		return fmt.Errorf("create the CRD of %s: %w", plural, err)
	}
	return nil
}

func Eventually(ctx context.Context, what string, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, UsableLimit)
	defer cancel()
	if err := process.Until(ctx, CalmPoll, look); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
