package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/e2e/cluster"
)

// kubectlTimeout is how long one command may take.
const kubectlTimeout = 60 * time.Second

// kubectl runs the unmodified program, with a home of its own.
type kubectl struct {
	t         *testing.T
	path      string
	env       []string
	namespace string
}

func newKubectl(t *testing.T, path string, s *cluster.Server) *kubectl {
	t.Helper()
	home := t.TempDir()
	return &kubectl{
		t: t, path: path,
		env: append(os.Environ(), "HOME="+home, "KUBECONFIG="+s.Kubeconfig(), "KUBECACHEDIR="+filepath.Join(home, "cache")),
	}
}

func (k *kubectl) command(ctx context.Context, stdin string, args ...string) (stdout, stderr string, err error) {
	if k.namespace != "" {
		args = append([]string{"--namespace", k.namespace}, args...)
	}
	cmd := exec.CommandContext(ctx, k.path, args...)
	cmd.Env = k.env
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// with runs a command that has to succeed, with a manifest as its input.
func (k *kubectl) with(stdin string, args ...string) string {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), kubectlTimeout)
	defer cancel()
	stdout, stderr, err := k.command(ctx, stdin, args...)
	if err != nil {
		k.t.Errorf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

func (k *kubectl) run(args ...string) string { k.t.Helper(); return k.with("", args...) }

// fails runs a command that has to fail, and returns its message.
func (k *kubectl) fails(stdin string, args ...string) string {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), kubectlTimeout)
	defer cancel()
	stdout, stderr, err := k.command(ctx, stdin, args...)
	if err == nil {
		k.t.Errorf("kubectl %s succeeds:\n%s", strings.Join(args, " "), stdout)
	}
	return stderr
}

// wants fails unless the output has all the parts.
func (k *kubectl) wants(output string, parts ...string) {
	k.t.Helper()
	for _, part := range parts {
		if !strings.Contains(output, part) {
			k.t.Errorf("there is no %q in:\n%s", part, output)
		}
	}
}

func testKubectl(t *testing.T, k *kubectl) {
	k.run("create", "namespace", "kubectl")
	for _, test := range []struct {
		name string
		run  func(*kubectl)
	}{
		{"About", kubectlAbout},
		{"Objects", kubectlObjects},
		{"Apply", kubectlApply},
		{"Watch", kubectlWatch},
		{"Explain", kubectlExplain},
		{"Lists", kubectlLists},
		{"CustomResources", kubectlCustomResources},
		{"Protocol", kubectlProtocol},
		{"DeleteNamespace", kubectlDeleteNamespace},
	} {
		t.Run(test.name, func(t *testing.T) {
			mine := *k
			mine.t, mine.namespace = t, "kubectl"
			test.run(&mine)
		})
	}
}

func kubectlAbout(k *kubectl) {
	k.wants(k.run("version"), "Server Version: v1.37.")
	k.wants(k.run("auth", "whoami"), "admin", "system:masters")
	k.wants(k.run("auth", "can-i", "delete", "secrets"), "yes")
	k.wants(k.run("config", "view"), "https://127.0.0.1:")
	k.wants(k.run("api-resources"), "configmaps", "cm", "mutatingadmissionpolicies", "ClusterTrustBundle", "storagestates", "APIService")
	k.wants(k.run("api-resources", "--verbs=list", "--namespaced", "-o", "name"), "configmaps", "leases.coordination.k8s.io")
	k.wants(k.run("api-versions"), "admissionregistration.k8s.io/v1", "migration.k8s.io/v1alpha1", "v1")
	k.wants(k.run("get", "--raw", "/readyz"), "ok")
}

func kubectlObjects(k *kubectl) {
	k.wants(k.run("create", "configmap", "a", "--from-literal=text=hello"), "configmap/a created")
	k.wants(k.fails("", "create", "configmap", "a"), "already exists")
	k.wants(k.run("get", "configmap"), "NAME", "DATA", "AGE", "a")
	k.wants(k.run("get", "cm", "a", "-o", "yaml"), "apiVersion: v1", "kind: ConfigMap", "text: hello", "resourceVersion:", "creationTimestamp:")
	k.wants(k.run("get", "cm", "a", "-o", "jsonpath={.data.text}"), "hello")
	k.wants(k.run("describe", "configmap", "a"), "hello")
	k.wants(k.run("label", "cm", "a", "colour=red"), "labeled")
	k.wants(k.run("annotate", "cm", "a", "note=x"), "annotated")
	k.wants(k.run("patch", "cm", "a", "-p", `{"data":{"more":"1"}}`), "patched")
	k.wants(k.run("get", "cm", "-l", "colour=red", "-o", "name"), "configmap/a")
	k.wants(k.run("create", "secret", "generic", "s", "--from-literal=key=value"), "secret/s created")
	k.wants(k.run("get", "secrets"), "TYPE", "Opaque")
	k.wants(k.run("create", "serviceaccount", "bot"), "serviceaccount/bot created")
	k.wants(k.run("delete", "cm", "a"), "deleted")
	k.wants(k.fails("", "get", "cm", "a"), "NotFound")
}

const applied = `
apiVersion: v1
kind: ConfigMap
metadata: {name: applied}
data: {text: %q}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: applied}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [nothing]}
  validations:
  - expression: "true"
`

func kubectlApply(k *kubectl) {
	first, second := fmt.Sprintf(applied, "first"), fmt.Sprintf(applied, "second")
	k.wants(k.with(first, "apply", "-f", "-"), "configmap/applied created", "validatingadmissionpolicy.admissionregistration.k8s.io/applied created")
	k.wants(k.with(first, "apply", "-f", "-"), "configmap/applied unchanged", "applied unchanged")
	k.wants(k.with(second, "apply", "-f", "-", "--dry-run=server"), "configmap/applied configured (server dry run)")
	k.wants(k.run("get", "cm", "applied", "-o", "jsonpath={.data.text}"), "first")
	if out, _, err := k.command(k.t.Context(), second, "diff", "-f", "-"); err == nil || !strings.Contains(out, "+  text: second") {
		k.t.Errorf("kubectl diff: %v\n%s", err, out)
	}
	k.wants(k.with(second, "apply", "-f", "-"), "configmap/applied configured")
	k.wants(k.fails(fmt.Sprintf(applied, "third"), "apply", "--server-side", "--field-manager=other", "-f", "-"), "conflict")
	k.wants(k.with(fmt.Sprintf(applied, "third"), "apply", "--server-side", "--force-conflicts", "-f", "-"), "configmap/applied serverside-applied")
	k.wants(k.run("get", "cm", "applied", "-o", "yaml", "--show-managed-fields"), "operation: Apply", "text: third")
	k.wants(k.fails(strings.Replace(first, "\ndata:", "\ndada:", 1), "apply", "-f", "-"), "unknown field")
	k.with(first, "delete", "-f", "-")
}

// kubectlWatch reads what kubectl get --watch prints while an object changes.
func kubectlWatch(k *kubectl) {
	ctx, cancel := context.WithTimeout(k.t.Context(), kubectlTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.path, "get", "configmaps", "--namespace", k.namespace, "--watch", "--output-watch-events")
	cmd.Env = k.env
	output, err := os.Create(filepath.Join(k.t.TempDir(), "watch"))
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	saw := func(event, name string) func(context.Context) error {
		return func(context.Context) error {
			raw, err := os.ReadFile(output.Name())
			if err != nil {
				return err
			}
			for _, line := range strings.Split(string(raw), "\n") {
				if fields := strings.Fields(line); len(fields) > 1 && fields[0] == event && fields[1] == name {
					return nil
				}
			}
			return errors.New(string(raw))
		}
	}
	// The first object may be made before the watch begins: that it is seen says that it has begun.
	k.run("create", "configmap", "first")
	cluster.Eventually(k.t, kubectlTimeout, "kubectl shows the first object", saw("ADDED", "first"))
	k.run("create", "configmap", "second")
	cluster.Eventually(k.t, kubectlTimeout, "kubectl shows the second object", saw("ADDED", "second"))
	k.run("label", "configmap", "second", "a=b")
	cluster.Eventually(k.t, kubectlTimeout, "kubectl shows its change", saw("MODIFIED", "second"))
	k.run("delete", "configmap", "first", "second")
	cluster.Eventually(k.t, kubectlTimeout, "kubectl shows the deletion", saw("DELETED", "second"))
}

func kubectlExplain(k *kubectl) {
	k.wants(k.run("explain", "configmap.data"), "FIELD: data", "map[string]string")
	k.wants(k.run("explain", "mutatingadmissionpolicies.spec.mutations"), "patchType", "jsonPatch")
	k.wants(k.run("explain", "storageversions.status"), "commonEncodingVersion")
	k.wants(k.run("explain", "storagestates.status"), "persistedStorageVersionHashes")
	k.wants(k.run("explain", "crd.spec.versions"), "additionalPrinterColumns")
}

func kubectlLists(k *kubectl) {
	var manifest strings.Builder
	const n = 12
	for i := range n {
		fmt.Fprintf(&manifest, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: list-%02d, labels: {list: chunks}}\n", i)
	}
	k.with(manifest.String(), "create", "-f", "-")
	got := strings.Fields(k.run("get", "configmaps", "-l", "list=chunks", "--chunk-size=5", "-o", "name"))
	if len(got) != n {
		k.t.Errorf("in chunks of 5 there are %d objects, want %d: %v", len(got), n, got)
	}
	k.wants(k.run("get", "cm", "--field-selector", "metadata.name=list-03", "-o", "name"), "list-03")
	k.wants(k.run("get", "ns", "--field-selector", "status.phase=Active"), "STATUS", "Active", "kube-system")
	k.wants(k.run("get", "configmaps", "--all-namespaces", "--sort-by=.metadata.name"), "NAMESPACE")
	k.run("delete", "configmaps", "-l", "list=chunks")
	if left := k.run("get", "configmaps", "-l", "list=chunks", "-o", "name"); left != "" {
		k.t.Errorf("after the deletion by label there are %s", left)
	}
}

const gadgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.kubectl.concord.dev}
spec:
  group: kubectl.concord.dev
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, shortNames: [gg]}
  versions:
  - &version
    name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer, description: How large it is., minimum: 1}}}
          status: {type: object, properties: {size: {type: integer}}}
  - {<<: *version, name: v2, storage: false}
`

const gadget = `
apiVersion: kubectl.concord.dev/v1
kind: Gadget
metadata: {name: g}
spec: {size: %d}
`

func kubectlCustomResources(k *kubectl) {
	k.with(gadgets, "apply", "-f", "-")
	k.run("wait", "crd/gadgets.kubectl.concord.dev", "--for=condition=Established", "--timeout=30s")
	cluster.Eventually(k.t, time.Minute, "kubectl finds the new resource", func(ctx context.Context) error {
		_, stderr, err := k.command(ctx, "", "get", "gadgets")
		if err != nil {
			return errors.New(stderr)
		}
		return nil
	})
	k.wants(k.with(fmt.Sprintf(gadget, 3), "apply", "-f", "-"), "gadget.kubectl.concord.dev/g created")
	k.wants(k.fails(fmt.Sprintf(gadget, 0), "apply", "-f", "-"), "should be greater than or equal to 1")
	k.wants(k.run("get", "gg"), "SIZE", "3")
	k.wants(k.run("get", "gadgets.v2.kubectl.concord.dev", "g", "-o", "yaml"), "apiVersion: kubectl.concord.dev/v2", "size: 3")
	k.wants(k.run("scale", "gadget/g", "--replicas=5"), "scaled")
	k.wants(k.run("get", "gadget", "g", "-o", "jsonpath={.spec.size}"), "5")
	k.wants(k.run("patch", "gadget", "g", "--type=merge", "--subresource=status", "-p", `{"status":{"size":5},"spec":{"size":9}}`), "patched")
	k.wants(k.run("get", "gadget", "g", "-o", "jsonpath={.spec.size}/{.status.size}"), "5/5")
	cluster.Eventually(k.t, time.Minute, "kubectl explains the new resource", func(ctx context.Context) error {
		stdout, stderr, err := k.command(ctx, "", "explain", "gadget.spec.size")
		if err != nil || !strings.Contains(stdout, "How large it is.") {
			return errors.New(stdout + stderr)
		}
		return nil
	})
	k.run("delete", "crd", "gadgets.kubectl.concord.dev", "--timeout=30s")
	k.fails("", "get", "gadgets")
}

// kubectlProtocol looks at what Concord says of itself.
func kubectlProtocol(k *kubectl) {
	k.wants(k.run("get", "storageversions"), "ENCODING", "AGREED", "SERVERS", "core.configmaps", "True")
	var sv struct {
		Status struct {
			CommonEncodingVersion string
			StorageVersions       []struct{ APIServerID, EncodingVersion string }
		}
	}
	raw := k.run("get", "storageversion", "admissionregistration.k8s.io.mutatingadmissionpolicies", "-o", "json")
	if err := json.Unmarshal([]byte(raw), &sv); err != nil {
		k.t.Fatal(err)
	}
	if sv.Status.CommonEncodingVersion != string(policyV1) || len(sv.Status.StorageVersions) != 1 {
		k.t.Errorf("the StorageVersion says %+v", sv.Status)
	}
	cluster.Eventually(k.t, cluster.SettleTimeout, "the stored set of configmaps is known", func(ctx context.Context) error {
		stdout, stderr, err := k.command(ctx, "", "get", "storagestates", "configmaps")
		if err != nil || !strings.Contains(stdout, "STORED") || strings.Contains(stdout, "Unknown") {
			return errors.New(stdout + stderr)
		}
		return nil
	})
	k.wants(k.run("get", "storagestate", "configmaps", "-o", "yaml"), "persistedStorageVersionHashes:", "currentStorageVersionHash:", "lastHeartbeatTime:")
	kubectlMigrations(k)
	k.wants(k.run("get", "leases", "--namespace", "kube-system", "-l", "apiserver.kubernetes.io/identity=kube-apiserver"), "apiserver-")
	k.wants(k.run("get", "apiservices"), "v1.admissionregistration.k8s.io", "Local", "True")
}

// kubectlMigrations has a migration done in Kubernetes' own API, and finds it and its end in
// both.
func kubectlMigrations(k *kubectl) {
	const own = "storageversionmigration.storagemigration.k8s.io/kubectl"
	k.with(`
apiVersion: storagemigration.k8s.io/v1
kind: StorageVersionMigration
metadata: {name: kubectl}
spec: {resource: {group: "", resource: configmaps}}
`, "apply", "-f", "-")
	k.run("wait", "--for=condition=Succeeded", own, "--timeout=60s")
	k.wants(k.run("get", own), "RESOURCE", "STATUS", "configmaps", "Succeeded")
	cluster.Eventually(k.t, time.Minute, "events tell of the migration", func(ctx context.Context) error {
		stdout, stderr, err := k.command(ctx, "", "describe", own)
		if err != nil || !strings.Contains(stdout, "Normal  Succeeded") || !strings.Contains(stdout, "objects are in v1") {
			return errors.New(stdout + stderr)
		}
		return nil
	})
	table := k.run("get", "storageversionmigrations.migration.k8s.io")
	header, _, _ := strings.Cut(table, "\n")
	if got := strings.Join(strings.Fields(header), " "); got != "NAME RESOURCE PHASE ENCODING DONE TOTAL FAILED RATE AGE" {
		k.t.Errorf("the columns of migrations are %s", got)
	}
	if !regexp.MustCompile(`(?m)^kubectl-\S+ +configmaps +Succeeded +v1 +\d+ +\d+ +0 `).MatchString(table) {
		k.t.Errorf("the migration is not shown in\n%s", table)
	}
	k.wants(k.run("get", "storagestates", "configmaps"), "RESOURCE", "STORED", "CURRENT", "AGE")
	copied := k.run("get", "storageversionmigrations.migration.k8s.io", "-o", "jsonpath={.items[?(@.metadata.ownerReferences[0].name=='kubectl')].metadata.name}")
	k.wants(k.run("describe", "storageversionmigration.migration.k8s.io/"+copied), "Started", "rewrites configmaps to v1", "Succeeded")
	k.run("delete", own)
	k.run("wait", "--for=delete", "storageversionmigrations.migration.k8s.io/"+copied, "--timeout=30s")
}

func kubectlDeleteNamespace(k *kubectl) {
	k.run("create", "configmap", "inside")
	k.wants(k.fails("", "delete", "namespace", "kube-system", "--wait=false"), "forbidden")
	k.run("delete", "namespace", k.namespace, "--timeout=60s")
	k.wants(k.fails("", "get", "namespace", k.namespace), "NotFound")
}
