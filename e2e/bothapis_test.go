package e2e

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

//go:embed testdata/upstream-migrations.yaml
var upstreamMigrations string

// notServed are migrations of resources that a control plane without pods does not serve.
const notServed = `{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: pods-migration}, spec: {resource: {group: "", resource: pods}}}
---
{apiVersion: migration.k8s.io/v1alpha1, kind: StorageVersionMigration, metadata: {name: migrate-ingresses}, spec: {resource: {group: networking.k8s.io, version: v1, resource: ingresses}}}
`

var (
	cronTabs   = schema.GroupResource{Group: "example.com", Resource: "crontabs"}
	cronTabsV1 = load.Custom(cronTabs.WithVersion("v1"), "CronTab", metav1.NamespaceDefault)
)

// testBothMigrationAPIs: manifests of either migration API work unchanged, unless they name a version that is not
// served. One engine does the migrations of both. They run, succeed and fail with the conditions and Events of their
// API, also when the server is killed that migrates and that mirrors one API into the other. Deleting a migration
// cancels it.
func testBothMigrationAPIs(t *testing.T) {
	c := cluster.New(t)
	slowly := cluster.Options{Args: betas + " --migration-max-objects-per-second=10"}
	one := c.Start(slowly, "one")[0]
	crd := widgetLike(cronTabs, "v1")
	crd.Spec.Names.Kind, crd.Spec.Names.ListKind = "CronTab", "CronTabList"
	createCRD(t, crd, one)
	fill(t, one, cronTabsV1, stored)
	c.WaitSettled()
	storeIn(t, one, cronTabs, "v2")
	waitCommon(t, c, cronTabs, "example.com/v2")

	cancelled := createFrom(t, one, `{apiVersion: storagemigration.k8s.io/v1, kind: StorageVersionMigration, metadata: {name: cancelled}, spec: {resource: {group: example.com, resource: crontabs}}}`)
	runs := waitMigrated(t, one, cancelled[0], "runs", storagemigrationv1.MigrationRunning, migrationv1alpha1.ReasonRewriting)
	if runs.Status.ResourceVersion == "" {
		t.Error("it runs without a resourceVersion")
	}
	if copies := copiesOf(t, one, "cancelled"); len(copies) != 1 || copies[0].Annotations[migrationv1alpha1.ClaimedByAnnotation] == "" {
		t.Errorf("it runs with the copies %+v", copies)
	}
	must(t, resource(one, cancelled[0]).Delete(t.Context(), "cancelled", metav1.DeleteOptions{}))
	cluster.Eventually(t, time.Minute, "the copy goes with its original", func(context.Context) error {
		if copies := copiesOf(t, one, "cancelled"); len(copies) > 0 {
			return fmt.Errorf("there are %+v", copies)
		}
		return nil
	})

	manifests := strings.Split(upstreamMigrations, "---\n")
	first := slices.IndexFunc(manifests, func(m string) bool { return strings.Contains(m, "name: crontabs-migration") })
	cronTabsMigration := createFrom(t, one, manifests[first])[0]
	waitMigrated(t, one, cronTabsMigration, "runs", storagemigrationv1.MigrationRunning, migrationv1alpha1.ReasonRewriting)
	survivor := c.Start(slowly, "two")[0]
	made := createFrom(t, survivor, strings.Join(append(slices.Delete(manifests, first, first+1), notServed), "---\n"))
	waitMigrated(t, survivor, cronTabsMigration, "still runs", storagemigrationv1.MigrationRunning, migrationv1alpha1.ReasonRewriting)
	one.Kill()
	ended := waitMigrated(t, survivor, cronTabsMigration, "succeeds", storagemigrationv1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	if want := fmt.Sprintf("%d objects are in example.com/v2", stored); meta.FindStatusCondition(ended.Status.Conditions, "Succeeded").Message != want {
		t.Errorf("conditions %+v, want the message %q", ended.Status.Conditions, want)
	}
	if running := meta.FindStatusCondition(ended.Status.Conditions, "Running"); running == nil || running.Status != metav1.ConditionFalse {
		t.Errorf("conditions %+v after the end", ended.Status.Conditions)
	}
	wantEncoding(t, c, cronTabs, "example.com/v2", stored)
	waitMigrated(t, survivor, manifest(t, made, "secrets-migration"), "succeeds", storagemigrationv1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	waitMigrated(t, survivor, manifest(t, made, "flowschemas-migration"), "succeeds", storagemigrationv1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	waitMigrated(t, survivor, manifest(t, made, "pods-migration"), "fails", storagemigrationv1.MigrationFailed, migrationv1alpha1.ReasonResourceNotFound)
	waitTold(t, survivor, cronTabsMigration, "Started", "Resumed", "Succeeded")
	waitTold(t, survivor, manifest(t, made, "secrets-migration"), "Started", "Succeeded")
	waitTold(t, survivor, manifest(t, made, "pods-migration"), "ResourceNotFound")
	waitPredecessor(t, survivor, "migrate-crontabs-v1", migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	// This migration names v1beta1, which no release that can be emulated serves.
	waitPredecessor(t, survivor, "flowcontrol-flowschema-storage-version-migration", migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonVersionNotServed)
	waitPredecessor(t, survivor, "migrate-ingresses", migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonResourceNotFound)
	c.WaitSettled()
	c.Check()
}

// createFrom creates the objects of manifests. A field that the server does not know is an error.
func createFrom(t *testing.T, s *cluster.Server, manifests string) (made []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(manifests)), 4096)
	for {
		u := &unstructured.Unstructured{}
		switch err := decoder.Decode(&u.Object); {
		case errors.Is(err, io.EOF):
			return made
		case err != nil:
			t.Fatal(err)
		}
		stored, err := resource(s, u).Create(t.Context(), u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err != nil {
			t.Fatalf("create %s %s: %v", u.GetAPIVersion(), u.GetName(), err)
		}
		made = append(made, stored)
	}
}

func resource(s *cluster.Server, u *unstructured.Unstructured) dynamic.ResourceInterface {
	return s.Dynamic().Resource(resourceOf(u)).Namespace(u.GetNamespace())
}

func manifest(t *testing.T, all []*unstructured.Unstructured, name string) *unstructured.Unstructured {
	t.Helper()
	for _, u := range all {
		if u.GetName() == name {
			return u
		}
	}
	t.Fatalf("there is no manifest of %s", name)
	return nil
}

// copiesOf returns the migrations of migration.k8s.io that were made for one of storagemigration.k8s.io.
func copiesOf(t *testing.T, s *cluster.Server, name string) (copies []migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	var list migrationv1alpha1.StorageVersionMigrationList
	must(t, s.Objects().List(t.Context(), &list))
	for _, m := range list.Items {
		if owner := metav1.GetControllerOf(&m); owner != nil && owner.Name == name && strings.HasPrefix(owner.APIVersion, storagemigrationv1.GroupName+"/") {
			copies = append(copies, m)
		}
	}
	return copies
}

// waitMigrated waits until one condition of a migration of storagemigration.k8s.io is
// true, for this reason, and returns it.
func waitMigrated(t *testing.T, s *cluster.Server, u *unstructured.Unstructured, what string, wanted storagemigrationv1.MigrationConditionType, reason string) *storagemigrationv1.StorageVersionMigration {
	t.Helper()
	m := &storagemigrationv1.StorageVersionMigration{}
	cluster.Eventually(t, cluster.SettleTimeout, u.GetName()+" "+what, func(ctx context.Context) error {
		read, err := resource(s, u).Get(ctx, u.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		*m = storagemigrationv1.StorageVersionMigration{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(read.Object, m); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(m.Status.Conditions, string(wanted)); c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason || c.LastTransitionTime.IsZero() {
			return fmt.Errorf("status %+v", m.Status)
		}
		return nil
	})
	return m
}

// waitPredecessor is waitMigrated for migrations of migration.k8s.io.
func waitPredecessor(t *testing.T, s *cluster.Server, name string, wanted migrationv1alpha1.MigrationConditionType, reason string) {
	t.Helper()
	cluster.Eventually(t, cluster.SettleTimeout, fmt.Sprintf("%s is %s", name, wanted), func(ctx context.Context) error {
		read, err := s.Dynamic().Resource(migrationv1alpha1.SchemeGroupVersion.WithResource("storageversionmigrations")).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(read.Object, "status", "conditions")
		for _, c := range conditions {
			c := c.(map[string]any)
			if c["type"] == string(wanted) && c["status"] == "True" && c["reason"] == reason && c["lastUpdateTime"] != nil && c["lastTransitionTime"] == nil {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", conditions)
	})
}

// waitCommon waits until all servers agree on the encoding.
func waitCommon(t *testing.T, c *cluster.Cluster, gr schema.GroupResource, encoding agree.Encoding) {
	t.Helper()
	cluster.Eventually(t, time.Minute, "all servers agree on "+string(encoding), func(context.Context) error {
		if common := c.Standing(gr).Common(); common != encoding {
			return fmt.Errorf("they agree on %q", common)
		}
		return nil
	})
}

// waitTold waits until there are Events with all these reasons about a migration of storagemigration.k8s.io.
func waitTold(t *testing.T, s *cluster.Server, u *unstructured.Unstructured, reasons ...string) {
	t.Helper()
	cluster.Eventually(t, cluster.SettleTimeout, fmt.Sprintf("events tell %v of %s", reasons, u.GetName()), func(ctx context.Context) error {
		events, err := s.Kube().CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var told []string
		for _, e := range events.Items {
			about := e.InvolvedObject
			if strings.HasPrefix(about.APIVersion, storagemigrationv1.GroupName+"/") && about.Kind == u.GetKind() && about.UID == u.GetUID() {
				told = append(told, e.Reason)
			}
		}
		for _, reason := range reasons {
			if !slices.Contains(told, reason) {
				return fmt.Errorf("they tell %v", told)
			}
		}
		return nil
	})
}
