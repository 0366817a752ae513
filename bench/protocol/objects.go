package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/concord-dev/concord/bench/stage"
)

const (
	customGroup = "bench.concord.dev"
	crdPath     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	jsonType    = "application/json"

	// payloadBytes makes an object about 1 KiB as it is stored.
	payloadBytes = 600
	usableLimit  = 60 * time.Second
	// calmPoll is the time between two looks at a condition where the time it takes is not
	// measured, or the machine is busy, and exactPoll where it is measured.
	calmPoll  = 100 * time.Millisecond
	exactPoll = 10 * time.Millisecond
)

var payload = strings.Repeat("0123456789abcdef", payloadBytes/16)

// fields are an object as JSON has it.
type fields = map[string]any

// marshal never fails for what this program writes.
func marshal(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// definition is the CRD of cluster-scoped custom resources with the versions v1 and v2,
// both served.
func definition(plural, storage string) []byte {
	schema := fields{"openAPIV3Schema": fields{
		"type": "object",
		"properties": fields{"spec": fields{
			"type":       "object",
			"properties": fields{"payload": fields{"type": "string"}, "sequence": fields{"type": "integer"}},
		}},
	}}
	var versions []fields
	for _, v := range []string{"v1", "v2"} {
		versions = append(versions, fields{"name": v, "served": true, "storage": v == storage, "schema": schema})
	}
	kind := kindOf(plural)
	return marshal(fields{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": fields{"name": plural + "." + customGroup},
		"spec": fields{
			"group": customGroup, "scope": "Cluster", "versions": versions,
			"names": fields{"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List"},
		},
	})
}

func kindOf(plural string) string {
	return strings.ToUpper(plural[:1]) + strings.TrimSuffix(plural[1:], "s")
}

func customPath(plural, version string) string {
	return "/apis/" + customGroup + "/" + version + "/" + plural
}

// custom is a custom resource of about 1 KiB.
func custom(plural, version, name string, sequence int) fields {
	return fields{
		"apiVersion": customGroup + "/" + version, "kind": kindOf(plural),
		"metadata": fields{"name": name},
		"spec":     fields{"payload": payload, "sequence": sequence},
	}
}

// configMap is a ConfigMap of about 1 KiB.
func configMap(name string, sequence int) fields {
	return fields{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": fields{"name": name},
		"data":     fields{"payload": payload, "sequence": fmt.Sprint(sequence)},
	}
}

// policy is a MutatingAdmissionPolicy of about 1 KiB.
func policy(name string) fields {
	return fields{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
		"metadata": fields{"name": name},
		"spec": fields{
			"reinvocationPolicy": "Never", "failurePolicy": "Ignore",
			"variables": []fields{{"name": "payload", "expression": "'" + payload + "'"}},
			"matchConstraints": fields{"resourceRules": []fields{{
				"apiGroups": []string{"nowhere." + customGroup}, "apiVersions": []string{"v1"},
				"operations": []string{"CREATE"}, "resources": []string{"nothings"},
			}}},
			"mutations": []fields{{"patchType": "JSONPatch", "jsonPatch": fields{"expression": `[JSONPatch{op: "remove", path: "/spec"}]`}}},
		},
	}
}

// identity is what a client keeps of an object that it wants to write again.
type identity struct {
	Metadata struct {
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
}

func identityOf(body []byte) (identity, error) {
	var id identity
	err := json.Unmarshal(body, &id)
	if err == nil && id.Metadata.ResourceVersion == "" {
		err = errors.New("the answer has no resourceVersion")
	}
	return id, err
}

// awaitBootstrap waits until the cluster's own objects are there: the default namespace
// and the migrations' resources.
func awaitBootstrap(ctx context.Context, c *stage.Client) error {
	return eventually(ctx, "the cluster's own objects exist", func(ctx context.Context) error {
		for _, path := range []string{"/api/v1/namespaces/default", migrationsPath, "/apis/migration.k8s.io/v1alpha1/storagestates"} {
			if _, err := c.Do(ctx, http.MethodGet, path, "", nil); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	})
}

// createCRD creates a CRD and waits until its objects can be listed through every client.
func createCRD(ctx context.Context, clients []*stage.Client, plural, storage string) error {
	if _, err := clients[0].Do(ctx, http.MethodPost, crdPath, jsonType, definition(plural, storage)); err != nil {
		return fmt.Errorf("create the CRD of %s: %w", plural, err)
	}
	return eventually(ctx, "the CRD of "+plural+" is served", func(ctx context.Context) error {
		for _, c := range clients {
			if _, err := c.Do(ctx, http.MethodGet, customPath(plural, storage), "", nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func eventually(ctx context.Context, what string, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, usableLimit)
	defer cancel()
	if err := stage.Until(ctx, calmPoll, look); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
