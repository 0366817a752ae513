package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mitchellh/go-wordwrap"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/api/census"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/cmd/migrating"
	"github.com/concord-dev/concord/cmd/program"
	"github.com/concord-dev/concord/cmd/rawetcd"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/status"
)

func newCensusCommand(p *plugin) *cobra.Command {
	var o outputOptions
	var etcd rawetcd.Options
	var all bool
	cmd := &cobra.Command{
		Use:   "census RESOURCE... | --all | --etcd-servers URL,...",
		Short: "Count stored objects by encoding, from raw etcd",
		Long: `Count the stored objects of resources by encoding, from raw etcd. Every value is read, so that
counting many objects takes a while.

Without --etcd-servers a Concord server counts; only cluster admins may ask it to. With
--etcd-servers the command reads the etcd of any cluster itself, also that of stock
kube-apiservers. It then needs nothing but permission to read the keys under --etcd-prefix,
and writes nothing. Encrypted values are counted by their key, without decrypting them. In
this mode RESOURCE has to be a full name such as deployments.apps, and it is an error if
nothing is stored under that name.`,
		Example: `  kubectl concord census widgets.example.com
  kubectl concord census --all -o json
  kubectl concord census --etcd-servers https://127.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile c.crt --etcd-keyfile c.key`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := etcd.Validate(); err != nil {
				return err
			}
			if len(etcd.Servers) > 0 {
				return censusOfEtcd(cmd.Context(), cmd.OutOrStdout(), etcd, args, o.output)
			}
			if all == (len(args) > 0) {
				return errors.New("say what to count: names of resources, or --all")
			}
			return p.census(cmd.Context(), cmd.OutOrStdout(), args, o.output)
		},
	}
	o.add(cmd)
	etcd.AddFlags(cmd.Flags(), "asking a server")
	cmd.Flags().BoolVar(&all, "all", false, "count every resource that servers store")
	return cmd
}

// censusOfEtcd counts the objects in an etcd, of the resources if some are given and else of all.
func censusOfEtcd(ctx context.Context, out io.Writer, etcd rawetcd.Options, resources []string, output string) (err error) {
	client, err := etcd.Connect(ctx, etcd.Servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	counted, err := migratestore.Count(ctx, migratestore.NewEtcd(client), etcd.Under(), nil)
	if err != nil {
		return err
	}
	if counted.Rows, err = chosen(counted.Rows, resources); err != nil {
		return err
	}
	return rawetcd.PrintCensus(out, counted, false, output)
}

// chosen returns the rows of these resources, or all rows if resources is empty. It returns an error if nothing is
// stored under one of the names: etcd has no other names, such as short ones.
func chosen(rows []migratestore.Row, resources []string) ([]migratestore.Row, error) {
	if len(resources) == 0 {
		return rows, nil
	}
	var known []schema.GroupResource
	for _, row := range rows {
		if gr := schema.ParseGroupResource(row.Resource); !slices.Contains(known, gr) {
			known = append(known, gr)
		}
	}
	for _, name := range resources {
		if !slices.Contains(known, schema.ParseGroupResource(name)) {
			return nil, notStored(name, known)
		}
	}
	return slices.DeleteFunc(slices.Clone(rows), func(row migratestore.Row) bool { return !slices.Contains(resources, row.Resource) }), nil
}

// notStored says which of the known resources a name may mean by which nothing is stored.
func notStored(name string, known []schema.GroupResource) error {
	var meant []schema.GroupResource
	for _, gr := range known {
		if strings.HasPrefix(gr.String(), name) {
			meant = append(meant, gr)
		}
	}
	if len(meant) > 0 {
		return fmt.Errorf("nothing is stored as %q; give the whole name: %s", name, migrating.Names(meant))
	}
	return fmt.Errorf("nothing is stored as %q; without a name the census has all of the %d resources that are stored", name, len(known))
}

func (p *plugin) census(ctx context.Context, out io.Writer, args []string, output string) error {
	c, o, err := p.look(ctx)
	if err != nil {
		return err
	}
	resources := stored(o)
	if len(args) > 0 {
		if resources, err = c.resolveAll(o, args); err != nil {
			return err
		}
	}
	patient := rest.CopyConfig(c.config)
	patient.Timeout = 0 // a census takes as long as there are objects
	counted, elsewhere := []census.Resource{}, []string{}
	for _, gr := range resources {
		one, err := migrating.TakeCensus(ctx, patient, gr, migrating.Envelopes)
		switch {
		case census.IsNotStored(err, gr):
			elsewhere = append(elsewhere, gr.String()+" "+notStoredHere(o, gr))
		case err != nil:
			return fmt.Errorf("census of %s: %w", gr, err)
		default:
			counted = append(counted, *one)
		}
	}
	if output == "json" {
		return program.PrintJSON(out, counted)
	}
	_, err = io.WriteString(out, censusTable(counted, elsewhere))
	return err
}

// stored are the resources that have a StorageState.
func stored(o status.Observed) (all []schema.GroupResource) {
	for _, s := range o.States {
		all = append(all, schema.GroupResource{Group: s.Spec.Resource.Group, Resource: s.Spec.Resource.Resource})
	}
	slices.SortFunc(all, func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// censusTable returns a table of the counts, with a line for each resource that is stored elsewhere. Resources with
// objects that are not in the agreed version come first.
func censusTable(counted []census.Resource, elsewhere []string) string {
	mixed := func(c census.Resource) int {
		if slices.ContainsFunc(c.Rows, func(r census.Row) bool { return r.Encoding != c.Encoding }) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(counted, func(a, b census.Resource) int { return mixed(a) - mixed(b) })
	var text strings.Builder
	empty := 0
	for _, c := range counted {
		if len(c.Rows) == 0 {
			empty++
			continue
		}
		fmt.Fprintln(&text, c.Resource)
		for _, row := range c.Rows {
			mark := ""
			if row.Encoding != c.Encoding {
				mark = "  (not as agreed)"
			}
			fmt.Fprintf(&text, "  %9d objects  %12d bytes  %s%s\n", row.Objects, row.Bytes, row.Encoding, mark)
		}
	}
	if empty > 0 {
		fmt.Fprintf(&text, "nothing is stored of %d resources\n", empty)
	}
	for _, line := range elsewhere {
		fmt.Fprintln(&text, line)
	}
	return text.String()
}

func newKeysCommand(p *plugin) *cobra.Command {
	var o outputOptions
	var etcd rawetcd.Options
	cmd := &cobra.Command{
		Use:   "keys | keys --etcd-servers URL,... [KEY...]",
		Short: "Show which encryption keys stored objects need",
		Long: `Show which encryption keys stored objects need. Without --etcd-servers the answer comes from
the StorageStates, with --etcd-servers from the stored values themselves. Before you destroy a
key, use --etcd-servers to make sure that no value needs it.

` + rawetcd.AboutKeys,
		Example: `  kubectl concord keys
  kubectl concord keys --etcd-servers https://127.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile c.crt --etcd-keyfile c.key aescbc:v1:key1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := etcd.Validate(); err != nil {
				return err
			}
			if len(etcd.Servers) > 0 {
				return keysOfEtcd(cmd.Context(), cmd.OutOrStdout(), etcd, args, o.output)
			}
			if len(args) > 0 {
				return errors.New("whether a KEY is safe to remove is found in raw etcd only: give --etcd-servers")
			}
			_, observed, err := p.look(cmd.Context())
			if err != nil {
				return err
			}
			keys := keysOf(observed.States)
			if o.output == "json" {
				return program.PrintJSON(cmd.OutOrStdout(), keys)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), keysText(keys))
			return err
		},
	}
	o.add(cmd)
	etcd.AddFlags(cmd.Flags(), "asking a server")
	return cmd
}

func keysOfEtcd(ctx context.Context, out io.Writer, etcd rawetcd.Options, asked []string, output string) (err error) {
	client, err := etcd.Connect(ctx, etcd.Servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return rawetcd.Keys(ctx, out, migratestore.NewEtcd(client), etcd.Under(), asked, output)
}

// key is an encryption key, and the resources that may need it.
type key struct {
	// Key is Unknown for keys that are not known.
	Key string `json:"key"`
	// Encrypts lists the resources that servers encrypt with the key, Needs those that may have objects encrypted with
	// it.
	Encrypts []string `json:"encrypts,omitempty"`
	Needs    []string `json:"needs,omitempty"`
	// Unneeded are the resources that once needed it.
	Unneeded []string `json:"unneeded,omitempty"`
}

// keysOf returns the keys, sorted, with unneeded keys last.
func keysOf(states []migrationv1alpha1.StorageState) []key {
	found := map[string]*key{}
	of := func(name string) *key {
		if found[name] == nil {
			found[name] = &key{Key: name}
		}
		return found[name]
	}
	for _, s := range states {
		e := s.Status.Encryption
		if e == nil {
			continue
		}
		of(e.CurrentKey).Encrypts = append(of(e.CurrentKey).Encrypts, s.Name)
		for _, k := range e.StoredKeys {
			of(k).Needs = append(of(k).Needs, s.Name)
		}
		for _, k := range e.RemovableKeys {
			of(k).Unneeded = append(of(k).Unneeded, s.Name)
		}
	}
	keys := []key{}
	for _, k := range found {
		keys = append(keys, *k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		if d := min(1, len(b.Needs)) - min(1, len(a.Needs)); d != 0 {
			return d
		}
		return strings.Compare(a.Key, b.Key)
	})
	return keys
}

func keysText(keys []key) string {
	if len(keys) == 0 {
		return "nothing is encrypted, as far as is remembered\n"
	}
	var text strings.Builder
	for _, k := range keys {
		if k.Key == migrationv1alpha1.Unknown {
			continue
		}
		fmt.Fprintln(&text, k.Key)
		for _, line := range []struct {
			says      string
			resources []string
		}{{"encrypts", k.Encrypts}, {"may be needed by", k.Needs}} {
			if len(line.resources) > 0 {
				text.WriteString(indented(line.says + " " + strings.Join(line.resources, ", ")))
			}
		}
		if len(k.Needs) == 0 && len(k.Encrypts) == 0 {
			before := "destroying it"
			if k.Key == evolve.Identity {
				before = "taking it out of the configuration"
			}
			text.WriteString(indented("nothing needs it any more; prove that with concord keys before " + before))
		}
	}
	if i := slices.IndexFunc(keys, func(k key) bool { return k.Key == migrationv1alpha1.Unknown }); i >= 0 {
		for _, line := range []struct {
			says      string
			resources []string
		}{{"servers encrypt these with different keys, or do not agree on their version", keys[i].Encrypts}, {"objects may need keys that nobody remembers", keys[i].Needs}} {
			if len(line.resources) > 0 {
				text.WriteString(line.says + "\n" + indented(strings.Join(line.resources, ", ")))
			}
		}
	}
	return text.String()
}

// indented is a text below the line that it is about, in lines that fit.
func indented(text string) string {
	return "  " + strings.ReplaceAll(wordwrap.WrapString(text, plainWidth-2), "\n", "\n  ") + "\n"
}
