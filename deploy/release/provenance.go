package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	source    = "git+https://github.com/concord-dev/concord"
	buildType = "https://github.com/concord-dev/concord/blob/main/docs/releases.md"
	// predicateType is that of SLSA's build provenance (https://slsa.dev/spec/v1.0/provenance).
	predicateType = "https://slsa.dev/provenance/v1"
	// builder is the user who runs "make release": the statement is not signed.
	builder = "https://github.com/concord-dev/concord/blob/main/Makefile"
)

// writeProvenance writes an in-toto statement that names the commit from which the files of a release were built, and
// the Go version.
func writeProvenance(checksums, version, commit, out string) error {
	text, err := os.ReadFile(checksums)
	if err != nil {
		return err
	}
	subjects, err := parseChecksums(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", checksums, err)
	}
	statement, err := state(subjects, version, commit)
	if err != nil {
		return err
	}
	line, err := protojson.Marshal(statement)
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(line, '\n'), 0o644) //nolint:gosec // a release is for all to read
}

// parseChecksums reads lines of sha256sum.
func parseChecksums(text string) ([]*intoto.ResourceDescriptor, error) {
	var subjects []*intoto.ResourceDescriptor
	for line := range strings.Lines(text) {
		sum, name, ok := strings.Cut(strings.TrimRight(line, "\n"), "  ")
		if !ok {
			return nil, fmt.Errorf("the line %q is not a checksum and a name", strings.TrimSpace(line))
		}
		subjects = append(subjects, &intoto.ResourceDescriptor{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	return subjects, nil
}

// state says what was built of a commit.
func state(subjects []*intoto.ResourceDescriptor, version, commit string) (*intoto.Statement, error) {
	parameters, err := structpb.NewStruct(map[string]any{"version": version})
	if err != nil {
		return nil, err
	}
	built := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType: buildType, ExternalParameters: parameters,
			ResolvedDependencies: []*intoto.ResourceDescriptor{{Uri: source, Digest: map[string]string{"gitCommit": commit}}},
		},
		RunDetails: &provenance.RunDetails{Builder: &provenance.Builder{Id: builder, Version: map[string]string{"go": runtime.Version()}}},
	}
	if err := built.Validate(); err != nil {
		return nil, err
	}
	text, err := protojson.Marshal(built)
	if err != nil {
		return nil, err
	}
	predicate := &structpb.Struct{}
	if err := protojson.Unmarshal(text, predicate); err != nil {
		return nil, err
	}
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, Subject: subjects, PredicateType: predicateType, Predicate: predicate}
	return statement, statement.Validate()
}
