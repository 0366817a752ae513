package status

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status/cause"
	"github.com/concord-dev/concord/verdict"
)

// unread groups the unreadable objects by what is wrong with them, those that can be saved first. Objects that no
// failure names count with the first group.
func unread(r *resource, m *migrationv1alpha1.StorageVersionMigration, n, total int64, named []migrationv1alpha1.MigrationFailure) (problems []Problem) {
	var all []cause.Unread
	of := map[cause.Unread][]migrationv1alpha1.MigrationFailure{}
	for _, f := range named {
		v := cause.UnreadBy(f.Message)
		if of[v] == nil {
			all = append(all, v)
		}
		of[v] = append(of[v], f)
	}
	if len(all) == 0 {
		all = append(all, cause.Unread{})
	}
	slices.SortStableFunc(all, func(a, b cause.Unread) int { return a.Rank() - b.Rank() })
	unnamed := n - int64(len(named))
	for i, v := range all {
		count := int64(len(of[v]))
		if i == 0 {
			count += unnamed
		}
		problems = append(problems, r.unreadAs(m, v, count, total, of[v]))
	}
	return problems
}

func (r *resource) unreadAs(m *migrationv1alpha1.StorageVersionMigration, v cause.Unread, n, total int64, named []migrationv1alpha1.MigrationFailure) Problem {
	kept := fmt.Sprintf("%s: %d of %d objects cannot be migrated to %s: ", r, n, total, toEncoding(r, m))
	lists := fmt.Sprintf(", and as long as they are there no list of %s can", r)
	switch {
	case v.Version != "":
		return ofObjects(r, m, n, named, kept+"they are stored in "+v.Version+", which "+r.lackedBy(v.Version)+lists, r.readAgain(v))
	case v.Sealed:
		return ofObjects(r, m, n, named, kept+"they cannot be decrypted"+lists, r.readAgain(v))
	}
	if len(named) == 0 {
		return ofObjects(r, m, n, named, kept+"they cannot be read"+lists, inLog(m)+", with what they lack")
	}
	p := ofObjects(r, m, n, named, kept+"they cannot be read"+lists, "")
	p.Do = fmt.Sprintf("remove them unread, create them anew from a backup, and run kubectl concord migrate %s. Servers before 1.37 remove nothing unread: there take the keys, which a list names, out of etcd. For each", r)
	p.Run = r.removal(named[0].Namespace != "")
	return p
}

// has says whether the definition has a version.
func (r *resource) has(version string) bool {
	return r.crd != nil && slices.ContainsFunc(r.crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return string(migrationv1alpha1.EncodingOf(r.crd, v.Name)) == version
	})
}

// lackedBy says which servers do not have a version.
func (r *resource) lackedBy(version string) string {
	switch {
	case r.has(version):
		return "the CustomResourceDefinition lacked then"
	case r.crd != nil:
		return "the CustomResourceDefinition lacks"
	}
	return "servers of this release do not read"
}

// readAgain is how such values can be read again, or that they have to be deleted because that leads nowhere; empty
// where they say no more than that they cannot.
func (r *resource) readAgain(v cause.Unread) string {
	switch {
	case v.Sealed:
		return "put the key that they are encrypted with back into --encryption-provider-config of every server"
	case v.Version == "":
		return ""
	case r.has(v.Version):
		return "it has that version again: wait a moment"
	case r.crd != nil:
		return fmt.Sprintf("no object is lost: put %s back into spec.versions of the CustomResourceDefinition %s (served: false and storage: false will do)", v.Version, r.crd.Name)
	case r.strands(v.Version):
		return compat.Removal([]string{v.Version}, "these servers read")
	}
	return fmt.Sprintf("no object is lost: run servers of a release that reads %s", v.Version)
}

// strands says whether no release migrates objects of the resource from a version to one that servers read.
func (r *resource) strands(version string) bool {
	read := []string{}
	if r.common != "" {
		read = append(read, string(r.common.Plain()))
	}
	for _, report := range r.reports {
		if report.Encoding != evolve.Unknown {
			read = append(read, report.Decodable...)
		}
	}
	return len(read) > 0 && compat.Stranded(verdict.Lifecycles(), r.GroupResource, version, func(e string) bool { return slices.Contains(read, e) })
}

// removal is the command, for any shell, that deletes one of these objects unread.
func (r *resource) removal(namespaced bool) string {
	path := "/apis/" + r.Group + "/VERSION"
	if r.Group == "" {
		path = "/api/VERSION"
	}
	if namespaced {
		path += "/namespaces/NAMESPACE"
	}
	return "echo '{\"ignoreStoreReadErrorWithClusterBreakingPotential\":true}' | \\\n  kubectl delete -f - --raw \\\n  '" + path + "/" + r.Resource + "/NAME'"
}
