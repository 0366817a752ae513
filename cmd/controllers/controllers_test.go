package controllers

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// TestManifest: the image and the arguments in the manifests fit the program.
func TestManifest(t *testing.T) {
	text, err := os.ReadFile("../../deploy/controllers/base/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &deployment); err != nil {
		t.Fatal(err)
	}
	container, cmd := deployment.Spec.Template.Spec.Containers[0], NewCommand("concord-controllers")
	if !strings.HasPrefix(container.Image, cmd.Name()+":") || len(container.Command) > 0 {
		t.Errorf("the image is %s, the command %q", container.Image, container.Command)
	}
	if len(container.Args) == 0 {
		t.Error("it has no arguments")
	}
	if err := cmd.ParseFlags(container.Args); err != nil || cmd.Flags().NArg() > 0 {
		t.Errorf("%q: %v, and %q are no flags", container.Args, err, cmd.Flags().Args())
	}
}

// TestMirrorFlag: the value of --mirror may follow "=" or a space.
func TestMirrorFlag(t *testing.T) {
	for _, args := range [][]string{{"--mirror", "always"}, {"--mirror=always"}} {
		cmd := NewCommand("concord-controllers")
		if err := cmd.ParseFlags(args); err != nil || cmd.Flags().NArg() > 0 || cmd.Flags().Lookup("mirror").Value.String() != "always" {
			t.Errorf("%q: %v, and %q are no flags", args, err, cmd.Flags().Args())
		}
	}
}

// TestCleanFieldsFlag: managedFields are cleaned unless --clean-managed-fields=false says otherwise.
func TestCleanFieldsFlag(t *testing.T) {
	for _, args := range [][]string{nil, {"--clean-managed-fields=false"}} {
		o, cmd := &options{}, &cobra.Command{}
		o.addFlags(cmd)
		if err := cmd.ParseFlags(args); err != nil || o.CleanFields != (args == nil) {
			t.Errorf("%q: they are cleaned: %t, %v", args, o.CleanFields, err)
		}
	}
}
