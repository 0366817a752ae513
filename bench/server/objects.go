package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/testbed/process"
)

const group = "bench.example.com"

// kind is a kind of object that is written.
type kind struct {
	name, path, apiVersion, kind string
	// content has the fields of the object besides its metadata; an update changes %d.
	content string
}

var kinds = []kind{
	{"ConfigMaps", "/api/v1/namespaces/default/configmaps", "v1", "ConfigMap", `"data":{"n":"%d"}`},
	{"Secrets", "/api/v1/namespaces/default/secrets", "v1", "Secret", `"stringData":{"n":"%d"}`},
	{"Leases", "/apis/coordination.k8s.io/v1/namespaces/default/leases", "coordination.k8s.io/v1", "Lease", `"spec":{"leaseDurationSeconds":%d}`},
	custom("widgets"),
}

// custom is the kind of the objects whose CRD define has created.
func custom(plural string) kind {
	return kind{"custom resources", "/apis/" + group + "/v1/" + plural, group + "/v1", title(plural), `"spec":{"n":%d}`}
}

func title(plural string) string { return strings.ToUpper(plural[:1]) + plural[1:] }

func (k kind) body(name, version string, n int) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"resourceVersion":%q},`+k.content+"}", k.apiVersion, k.kind, name, version, n)
}

// version reads an object's resourceVersion.
func (s *side) version(ctx context.Context, path string) (string, error) {
	raw, err := s.do(ctx, "GET", path, "")
	if err != nil {
		return "", err
	}
	var object struct {
		Metadata struct{ ResourceVersion string }
	}
	err = json.Unmarshal(raw, &object)
	return object.Metadata.ResourceVersion, err
}

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// define creates a CRD of cluster-wide objects.
func (s *side) define(ctx context.Context, plural string) error {
	_, err := s.do(ctx, "POST", definitions, fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.%[2]s"},
"spec":{"group":%[2]q,"scope":"Cluster","names":{"plural":%[1]q,"kind":%[3]q},"versions":[{"name":"v1","served":true,"storage":true,
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer"}}}}}}}]}}`, plural, group, title(plural)))
	return err
}

// established waits until a CRD's objects are served.
func (s *side) established(ctx context.Context, plural string) error {
	return await(ctx, s.server.Run(), func(ctx context.Context) error {
		raw, err := s.do(ctx, "GET", definitions+"/"+plural+"."+group, "")
		if err != nil {
			return err
		}
		var crd struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if err := json.Unmarshal(raw, &crd); err != nil {
			return err
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == "Established" && c.Status == "True" {
				if plural == "widgets" { // the first write must not wait for the handler
					_, err = s.do(ctx, "GET", "/apis/"+group+"/v1/"+plural, "")
				}
				return err
			}
		}
		return fmt.Errorf("CRD %s is not established", plural)
	})
}

// migrated waits until every StorageState names only the encoding that the servers agree on.
// Concord migrates the resource of a new CRD, too, which takes a while for hundreds of them.
func (s *side) migrated(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	return process.Until(ctx, time.Second, func(ctx context.Context) error {
		raw, err := s.do(ctx, "GET", "/apis/migration.k8s.io/v1alpha1/storagestates", "")
		if err != nil {
			return err
		}
		var states migrationv1alpha1.StorageStateList
		if err := json.Unmarshal(raw, &states); err != nil {
			return err
		}
		for _, state := range states.Items {
			current := state.Status.CurrentStorageVersionHash
			if !slices.Equal(state.Status.PersistedStorageVersionHashes, []string{current}) || current == migrationv1alpha1.Unknown {
				return fmt.Errorf("%s is being migrated", state.Name)
			}
		}
		return nil
	})
}
