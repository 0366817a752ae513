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
const AboutKeys = `It counts the values in raw etcd by the key that each says it was encrypted with, at one
revision, and reads with which keys servers report to encrypt at that revision. A key is
safe to remove from --encryption-provider-config when no value has it and no server
encrypts with it: a server cannot write what it does not report. That holds as long as no
server is started, or loads a configuration, with that key in the first place. A backup of etcd
that was made before needs the key still: keep it for as long as such backups are kept.

Keys are named <provider>:<version>:<name>; "identity" stands for values that are not
encrypted. Of a KMS plugin each key that it uses, or used, is listed as
kms:v2:<plugin>:<fingerprint>, with the first 16 digits of the SHA-256 of the key's ID
(printf %s ID | sha256sum): one that is safe to remove can be destroyed in the KMS. The
name kms:v2:<plugin> stands for all of them. A plugin of KMS v1 does not tell its keys,
and is one key, kms:v1:<plugin>.

It exits with 0, with 2 if a KEY that was given is not safe to remove, and with 1 if that
cannot be found out.`

// keysAttempts is how often the keys are counted anew because the revision was compacted.
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

// needed says which of the keys asked for are not safe to remove. Of one that nobody has
// heard of only that can be said.
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
