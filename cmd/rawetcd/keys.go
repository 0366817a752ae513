package rawetcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mitchellh/go-wordwrap"

	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/keyring/use"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// AboutKeys is the long help of the commands that print keys.
const AboutKeys = `The command counts the values in raw etcd by encryption key, and reads the keys that the
servers report to encrypt with, both at one revision of etcd. A key can be removed from
--encryption-provider-config safely when no value is encrypted with it and no server encrypts
with it, since a server cannot write with a key that it does not report. This stays true until
a server is started, or reloads its configuration, with that key in first place. Backups of
etcd that were made earlier still need the key: keep it for as long as you keep them.

Keys are named <provider>:<version>:<name>; "identity" stands for values that are not
encrypted. The keys of a KMS v2 plugin are listed one by one as
kms:v2:<plugin>:<fingerprint>, where the fingerprint is the first 16 hex digits of the SHA-256
of the key's ID (printf %s ID | sha256sum). Such a key can be destroyed in the KMS when it can
be removed safely. The name kms:v2:<plugin> stands for all keys of the plugin. A KMS v1 plugin
does not name its keys and counts as one key, kms:v1:<plugin>.

Exit codes: 0 on success, 2 if a given KEY cannot be removed safely, 1 if that cannot be
determined.`

// keysAttempts is how often the count of keys restarts because its revision was compacted.
const keysAttempts = 5

// Keys prints what the encryption keys of an etcd are needed for, as a table or, if output is
// json, as that. The error says which of the keys asked for are not safe to remove, with exit
// code 2, or that it cannot be found out.
func Keys(ctx context.Context, out io.Writer, reader migratestore.Reader, under string, asked []string, output string) error {
	var report use.Report
	var err error
	for range keysAttempts {
		report, err = use.Read(ctx, reader, under)
		if !errors.Is(err, migratestore.ErrCompacted) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("keys cannot be counted: %w", err)
	}
	if output == "json" {
		err = program.PrintJSON(out, report)
	} else {
		err = printKeys(out, report)
	}
	return errors.Join(err, needed(report, asked))
}

// needed returns an error if keys asked for cannot be removed safely: it lists them with the reasons, or only names the
// first key that is not known.
func needed(report use.Report, asked []string) error {
	var reasons []string
	for _, name := range asked {
		known := false
		for _, k := range report.Keys {
			if plugin, _, kms := migratestore.KMSKey(k.Name); k.Name != name && (!kms || plugin != name) {
				continue
			}
			if known = true; !k.Removable {
				reasons = append(reasons, k.Name+": "+k.Reason)
			}
		}
		if !known {
			return fmt.Errorf("no stored value and no server knows a key %q: keys are named <provider>:<version>:<name>, such as aescbc:v1:key1", name)
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return program.No("not safe to remove: " + strings.Join(reasons, "; "))
}

func printKeys(out io.Writer, report use.Report) error {
	if len(report.Keys) == 0 {
		_, err := fmt.Fprintf(out, "nothing is encrypted at revision %d:\nno stored value has a key, and no server encrypts with one\n", report.Revision)
		return err
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "KEY\tVALUES\tSAFE TO REMOVE")
	for _, k := range report.Keys {
		safe := "no"
		if k.Removable {
			safe = "yes"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", k.Name, k.Values, safe)
	}
	_ = w.Flush() // a strings.Builder takes everything
	lines := strings.SplitAfter(text.String(), "\n")
	shown := lines[0]
	for i, k := range report.Keys {
		shown += lines[i+1]
		if k.Reason != "" {
			shown += "  " + strings.ReplaceAll(wordwrap.WrapString(k.Reason, 78), "\n", "\n  ") + "\n"
		}
	}
	_, err := fmt.Fprintf(out, "%s\nrevision %d\n", shown, report.Revision)
	return err
}
