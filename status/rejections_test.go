package status_test

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/status"
)

// TestRejections: the advice depends on what refuses the objects, and a reason of several objects is told once. The
// messages have the form of those of kube-apiserver 1.37.
func TestRejections(t *testing.T) {
	for name, test := range map[string]struct {
		messages []string // of the objects a, b and so on
		want     []string // parts of the text, in this order
		lacks    string
	}{
		"a webhook that does not answer": {[]string{`Internal error occurred: failed calling webhook "w.ex.io": failed to call webhook: Post "https://127.0.0.1:9/": dial tcp 127.0.0.1:9: connect: connection refused`},
			[]string{"1 of 1 objects wait for the admission webhook w.ex.io, which does not answer", "do: bring it up, then:"}, "kubectl edit"},
		"a webhook whose certificate is not trusted": {[]string{`Internal error occurred: failed calling webhook "w.ex.io": failed to call webhook: Post "https://127.0.0.1:9/": tls: failed to verify certificate: x509: certificate signed by unknown authority`},
			[]string{"the admission webhook w.ex.io, whose certificate is not trusted", "do: see that its certificate is valid, and that the CA is in the caBundle", "then:"}, "bring it up"},
		"a webhook that fails": {[]string{`Internal error occurred: failed calling webhook "w.ex.io": failed to call webhook: an error on the server`},
			[]string{"the admission webhook w.ex.io, whose calls fail", "do: mend the webhook, then:"}, "kubectl edit"},
		"a missing right": {[]string{
			`rbs.example.com "a" is forbidden: User "system:serviceaccount:x:y" cannot patch resource "rbs/status" in API group "example.com" in the namespace "one"`,
			`rbs.example.com "b" is forbidden: User "system:serviceaccount:x:y" cannot patch resource "rbs/status" in API group "example.com" in the namespace "two"`,
		}, []string{"system:serviceaccount:x:y lacks the right to patch rbs/status.example.com", `default/a, default/b: User "system:serviceaccount:x:y" cannot patch resource`, "do: give it that right (docs/rbac.md"}, "kubectl edit"},
		"a missing right, cut": {[]string{`awsmanagedcontrolplanes.controlplane.cluster.x-k8s.io "production-eu-central-1-control-plane" is forbidden: User "system:serviceaccount:concord-system:concord-controllers" cannot patch resource "awsmanagedcontrolplanes/status" in API group "controlplane.clus…`},
			[]string{"system:serviceaccount:concord-system:concord-controllers lacks the right to patch awsmanagedcontrolplanes/status.controlplane.clus…", "do: give it that right (docs/rbac.md"}, "kubectl edit"},
		"a missing right, cut in the resource": {[]string{`User "system:serviceaccount:x:y" cannot patch resource "awsmanaged…`},
			[]string{"system:serviceaccount:x:y lacks the right to patch awsmanaged…", "do: give it that right (docs/rbac.md"}, "kubectl edit"},
		"a finalizer that admission adds": {[]string{`Rb.example.com "a" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"x.io/f"}`},
			[]string{"a mutating webhook or policy adds a finalizer to objects that are being deleted", "do: exclude the user that migrates from it, or let the deletions end"}, "kubectl edit"},
		"a namespace that is gone": {[]string{`namespaces "nsx" not found`},
			[]string{"their namespace nsx does not exist, and an admission webhook or policy asks for its labels", "do: kubectl create namespace nsx,"}, "kubectl edit"},
		"a policy": {[]string{`rbs.example.com "a" is forbidden: ValidatingAdmissionPolicy 'odd' with binding 'all' denied request: no odd ones`},
			[]string{"they are not taken as they are", "default/a: ValidatingAdmissionPolicy 'odd'", "do: mend them (kubectl edit rbs.example.com NAME), or change the ValidatingAdmissionPolicy odd, which refuses them"}, ""},
		"a webhook that refuses": {[]string{`admission webhook "w.ex.io" denied the request: no`},
			[]string{"or change the admission webhook w.ex.io, which refuses them"}, ""},
		"two reasons": {[]string{
			`Internal error occurred: failed calling webhook "w.ex.io": failed to call webhook: Post "https://w": context deadline exceeded`,
			`rbs.example.com "b" is forbidden: ValidatingAdmissionPolicy 'odd' with binding 'all' denied request: no odd ones`,
		}, []string{"2 of 2 objects cannot be migrated to example.com/v2: they are not taken as they are", "default/a: Internal error", "default/b: ValidatingAdmissionPolicy", "do: bring it up; mend them"}, ""},
		"a rule at the root": {[]string{`Rb.example.com "a" is invalid: <nil>: Invalid value: "object": too odd`, `Rb.example.com "b" is invalid: <nil>: Invalid value: "object": too odd`},
			[]string{`default/a, default/b: Invalid value: "object": too odd`, "or change the rule of their CustomResourceDefinition that refuses them"}, "<nil>"},
	} {
		m := migrationv1alpha1.StorageVersionMigration{}
		m.Name, m.Annotations = "rbs-1", map[string]string{"concord.dev/encoding": "example.com/v2", "concord.dev/storage-version-uid": "u", "concord.dev/epoch": "1"}
		m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "rbs"}
		m.Status.Progress = &migrationv1alpha1.MigrationProgress{Failed: int64(len(test.messages))}
		for i, message := range test.messages {
			m.Status.Failures = append(m.Status.Failures, migrationv1alpha1.MigrationFailure{Namespace: "default", Name: string(rune('a' + i)), Reason: migrationv1alpha1.FailureRejected, Message: message})
		}
		migrationv1alpha1.SetCondition(&m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed, "", metav1.Now())
		o := status.Observed{Migrations: []migrationv1alpha1.StorageVersionMigration{m}}
		crd := apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "rbs.example.com"}}
		crd.Spec.Group, crd.Spec.Names.Plural = "example.com", "rbs"
		crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}
		crd.Status.StoredVersions = []string{"v1", "v2"}
		o.CRDs = append(o.CRDs, crd)
		answer, err := status.Why(o, schema.GroupResource{Group: "example.com", Resource: "rbs"}, status.Counted{})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(answer.Text(status.Style{Width: 80})), " ")
		rest := text
		for _, want := range test.want {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s: %q is missing, or not in its place, in\n%s", name, want, text)
			}
			rest = after
		}
		if test.lacks != "" && strings.Contains(text, test.lacks) {
			t.Errorf("%s: it says %q:\n%s", name, test.lacks, text)
		}
	}
}

// TestConversionWebhook: the text says whether a conversion webhook was not reached, is not trusted, or refuses objects.
// That works also for a kind named Certificate, whose name is in the API server's message.
func TestConversionWebhook(t *testing.T) {
	const failed = "Internal error occurred: conversion webhook for example.com/v1, Kind=Certificate failed: "
	for message, want := range map[string]string{
		`Post "https://w": tls: failed to verify certificate: x509: certificate signed by unknown authority`: "wait for the conversion webhook, whose certificate is not trusted do: see that its certificate is valid, and that the CA is in the caBundle of the webhook's clientConfig;",
		`Post "https://w": dial tcp 127.0.0.1:9: connect: connection refused`:                                "wait for the conversion webhook, which does not answer do: bring it up;",
		`Post "https://w": remote error: tls: handshake failure`:                                             "wait for the conversion webhook, which does not answer do: bring it up;",
		"it has no spec.size": "the conversion webhook refuses them do: mend these objects, or the webhook,",
	} {
		m := migrationv1alpha1.StorageVersionMigration{}
		m.Name, m.Annotations = "rbs-1", map[string]string{"concord.dev/encoding": "example.com/v2", "concord.dev/storage-version-uid": "u", "concord.dev/epoch": "1"}
		m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "rbs"}
		m.Status.Progress = &migrationv1alpha1.MigrationProgress{Failed: 1}
		m.Status.Failures = []migrationv1alpha1.MigrationFailure{{Name: "a", Reason: migrationv1alpha1.FailureConversionWebhook, Message: failed + message}}
		migrationv1alpha1.SetCondition(&m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed, "", metav1.Now())
		answer, err := status.Why(status.Observed{Migrations: []migrationv1alpha1.StorageVersionMigration{m}}, schema.GroupResource{Group: "example.com", Resource: "rbs"}, status.Counted{})
		if err != nil {
			t.Fatal(err)
		}
		p := answer.Problems[0]
		if got := p.Text + " do: " + p.Do; !strings.Contains(got, want) {
			t.Errorf("%s: it says %q", message, got)
		}
	}
}
