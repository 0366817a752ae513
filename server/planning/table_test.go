package planning_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/verdict"
)

var writeTable = flag.Bool("write-table", false, "write verdict/lifecycles.txt anew")

// TestTableOfLifecycles: programs that do not link Kubernetes have its lifecycles from a table,
// which must say the same as Kubernetes' types.
//
//	go test ./server/planning -run TableOfLifecycles -write-table
func TestTableOfLifecycles(t *testing.T) {
	want := format(planning.Lifecycles())
	const file = "../../verdict/lifecycles.txt"
	if *writeTable {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what Kubernetes' types say: run this test with -write-table", file)
	}
	if back, err := verdict.ParseLifecycles(want); err != nil || format(back) != want {
		t.Errorf("the table cannot be read as it is written: %v", err)
	}
}

// format returns the text of the table.
func format(all []compat.Lifecycle) string {
	var text strings.Builder
	release := func(v *version.Version) string {
		if v == nil {
			return "-"
		}
		return v.String()
	}
	for _, l := range all {
		fmt.Fprint(&text, cmp.Or(l.Group, "core"), " ", l.Version, " ", l.Resource, " ", l.Kind, " ", release(l.Introduced), " ", release(l.Deprecated), " ", release(l.Removed))
		for _, word := range []struct {
			is   bool
			text string
		}{{l.Kept, " kept"}, {l.Gone, " gone"}, {l.NotPersisted, " notpersisted"}} {
			if word.is {
				text.WriteString(word.text)
			}
		}
		text.WriteString("\n")
	}
	return text.String()
}

// TestByRBAC: RBAC is found at any place among a server's authorizers.
func TestByRBAC(t *testing.T) {
	file := func(authorizers string) *kubeoptions.BuiltInAuthorizationOptions {
		name := filepath.Join(t.TempDir(), "authorization.json")
		if err := os.WriteFile(name, []byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[`+authorizers+`]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		return &kubeoptions.BuiltInAuthorizationOptions{AuthorizationConfigurationFile: name}
	}
	for name, test := range map[string]struct {
		options *kubeoptions.BuiltInAuthorizationOptions
		want    bool
	}{
		"as kubeadm": {&kubeoptions.BuiltInAuthorizationOptions{Modes: []string{"Node", "RBAC"}}, true},
		"ABAC":       {&kubeoptions.BuiltInAuthorizationOptions{Modes: []string{"ABAC"}}, false},
		"all may":    {&kubeoptions.BuiltInAuthorizationOptions{Modes: []string{"AlwaysAllow"}}, false},
		"a file":     {file(`{"type":"Node","name":"node"},{"type":"RBAC","name":"rbac"}`), true},
		"no RBAC":    {file(`{"type":"Node","name":"node"}`), false},
	} {
		if got, err := planning.ByRBAC(test.options); err != nil || got != test.want {
			t.Errorf("%s: %t, error %v", name, got, err)
		}
	}
	if _, err := planning.ByRBAC(file(`{"type":"Nobody","name":"nobody"}`)); err == nil {
		t.Error("a file with an authorizer that there is not is taken")
	}
}
