// Package reference writes the page of all commands of a program, with their flags, from the
// commands themselves (cobra/doc). A test holds the page to them; with CONCORD_UPDATE=1 it writes
// the page.
package reference

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Check fails the test if the page in a file is not that of the command and those below it.
func Check(t *testing.T, root *cobra.Command, file string) {
	t.Helper()
	want, err := page(root)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CONCORD_UPDATE") != "" {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the commands say of themselves: run make generate", file)
	}
}

// page is the reference of a command and of those below it, one after the other.
func page(root *cobra.Command) ([]byte, error) {
	var out bytes.Buffer
	fmt.Fprintf(&out, "<!-- Generated from the commands by make generate. Do not edit. -->\n\n# %s: commands and flags\n", root.DisplayName())
	var write func(cmd *cobra.Command) error
	write = func(cmd *cobra.Command) error {
		cmd.DisableAutoGenTag = true
		cmd.InitDefaultVersionFlag()
		fmt.Fprintln(&out)
		var text bytes.Buffer
		if err := doc.GenMarkdownCustom(cmd, &text, anchor); err != nil {
			return err
		}
		// The links to neighbours are those of a page for each command.
		about, _, _ := strings.Cut(text.String(), "### SEE ALSO")
		about, _, _ = strings.Cut(about, "### Options inherited") // the root's, said once
		fmt.Fprintln(&out, strings.TrimSpace(about))
		for _, c := range cmd.Commands() {
			if !c.IsAvailableCommand() || c.Name() == "help" || c.Name() == "completion" {
				continue
			}
			if err := write(c); err != nil {
				return err
			}
		}
		return nil
	}
	err := write(root)
	return out.Bytes(), err
}

func anchor(name string) string { return "#" + name }
