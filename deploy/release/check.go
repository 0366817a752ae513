package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

var (
	programs = []string{"concord", "concord-controllers", "kubectl-concord"}
	archives = []string{"concord", "kubectl-concord"}
	images   = []string{"concord", "concord-controllers"}
)

// release is a built release.
type release struct {
	// folders are where its files are.
	folders []string
	// Version and Commit are those that goreleaser reports.
	Version, Commit string
	// platforms are the platforms for which it was built, as linux/amd64.
	platforms []string
	// sums are the checksums by name.
	sums map[string]string
}

// check looks a release through as a user who downloads it would.
func (r *release) check() error {
	metadata, err := r.read("metadata.json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(metadata, r); err != nil {
		return fmt.Errorf("metadata.json: %w", err)
	}
	if err := r.checkSums(); err != nil {
		return err
	}
	return errors.Join(r.checkNames(), r.checkProvenance(), r.checkKrew(), r.checkChart(), r.checkImages(), r.checkPrograms())
}

// read returns one of the release's files.
func (r *release) read(name string) ([]byte, error) {
	for _, folder := range r.folders {
		if content, err := os.ReadFile(filepath.Join(folder, name)); err == nil || !errors.Is(err, os.ErrNotExist) {
			return content, err
		}
	}
	return nil, fmt.Errorf("%s is in none of %v", name, r.folders)
}

// checkSums computes all checksums again.
func (r *release) checkSums() error {
	text, err := r.read("checksums.txt")
	if err != nil {
		return err
	}
	files, err := parseChecksums(string(text))
	if err != nil {
		return err
	}
	r.sums = map[string]string{}
	for _, file := range files {
		content, err := r.read(file.Name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		if got := hex.EncodeToString(sum[:]); got != file.Digest["sha256"] {
			return fmt.Errorf("%s has the checksum %s, and checksums.txt says %s", file.Name, got, file.Digest["sha256"])
		}
		r.sums[file.Name] = file.Digest["sha256"]
	}
	return nil
}

// built names a file for one platform.
func (r *release) built(program, platform, extension string) string {
	return strings.Join([]string{program, r.Version, strings.Replace(platform, "/", "_", 1)}, "_") + extension
}

// checkNames looks for files that are missing among the checksums, or too many.
func (r *release) checkNames() error {
	want := []string{"concord-" + r.Version + ".tgz"}
	for _, image := range images {
		want = append(want, image+"-image-"+r.Version+".tar")
	}
	for _, platform := range r.platforms {
		for _, archive := range archives {
			want = append(want, r.built(archive, platform, ".tar.gz"))
		}
		for _, program := range programs {
			want = append(want, r.built(program, platform, ".cdx.json"))
		}
	}
	var err error
	for _, name := range want {
		if r.sums[name] == "" {
			err = errors.Join(err, fmt.Errorf("%s has no checksum", name))
		}
	}
	for name := range r.sums {
		if !slices.Contains(want, name) {
			err = errors.Join(err, fmt.Errorf("%s is no part of a release", name))
		}
	}
	return err
}

// checkProvenance compares it with the checksums.
func (r *release) checkProvenance() error {
	content, err := r.read("provenance.intoto.json")
	if err != nil {
		return err
	}
	statement := &intoto.Statement{}
	if err := protojson.Unmarshal(content, statement); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	if err := statement.Validate(); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	if len(statement.GetSubject()) != len(r.sums) {
		return fmt.Errorf("provenance names %d of %d files", len(statement.GetSubject()), len(r.sums))
	}
	for _, subject := range statement.GetSubject() {
		if r.sums[subject.GetName()] != subject.GetDigest()["sha256"] {
			return fmt.Errorf("provenance has another checksum of %s", subject.GetName())
		}
	}
	if !bytes.Contains(content, []byte(r.Commit)) {
		return fmt.Errorf("provenance does not name the commit %s", r.Commit)
	}
	return nil
}

// checkKrew compares the manifest with the plugin's archives.
func (r *release) checkKrew() error {
	content, err := r.read("krew/concord.yaml")
	if err != nil {
		return err
	}
	var plugin struct {
		Spec struct {
			Version   string
			Platforms []struct {
				URI, SHA256, Bin string
				Selector         struct{ MatchLabels map[string]string }
			}
		}
	}
	if err := yaml.Unmarshal(content, &plugin); err != nil {
		return fmt.Errorf("krew's manifest: %w", err)
	}
	if len(plugin.Spec.Platforms) != len(r.platforms) || plugin.Spec.Version != "v"+r.Version {
		return fmt.Errorf("krew's manifest is of %s for %d platforms", plugin.Spec.Version, len(plugin.Spec.Platforms))
	}
	for _, p := range plugin.Spec.Platforms {
		name := r.built("kubectl-concord", p.Selector.MatchLabels["os"]+"/"+p.Selector.MatchLabels["arch"], ".tar.gz")
		if !strings.HasSuffix(p.URI, "/"+name) || p.SHA256 != r.sums[name] || p.Bin != "kubectl-concord" {
			return fmt.Errorf("krew's manifest says of %s: %+v", name, p)
		}
	}
	return nil
}

// checkChart loads it.
func (r *release) checkChart() error {
	content, err := r.read("concord-" + r.Version + ".tgz")
	if err != nil {
		return err
	}
	chart, err := loader.LoadArchive(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	image, _ := chart.Values["image"].(map[string]any)
	if m := chart.Metadata; m.Version != r.Version || image["tag"] != r.Version || m.Annotations[commitAnnotation] != r.Commit {
		return fmt.Errorf("the chart %s of commit %q installs the image %v", m.Version, m.Annotations[commitAnnotation], image["tag"])
	}
	return nil
}

// checkImages reads all layers.
func (r *release) checkImages() error {
	for _, image := range images {
		content, err := r.read(image + "-image-" + r.Version + ".tar")
		if err != nil {
			return err
		}
		if err := r.checkImage(content); err != nil {
			return fmt.Errorf("the image of %s: %w", image, err)
		}
	}
	return nil
}

func (r *release) checkImage(archive []byte) error {
	folder, err := os.MkdirTemp("", "release-image")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if err := extract(bytes.NewReader(archive), folder); err != nil {
		return err
	}
	path, err := layout.FromPath(folder)
	if err != nil {
		return err
	}
	index, err := path.ImageIndex()
	if err != nil {
		return err
	}
	if err := validate.Index(index); err != nil {
		return err
	}
	return r.checkLabels(index)
}

// checkLabels looks for version and commit on every image of an index.
func (r *release) checkLabels(index v1.ImageIndex) error {
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, one := range manifest.Manifests {
		if one.MediaType.IsIndex() {
			nested, err := index.ImageIndex(one.Digest)
			if err != nil {
				return err
			}
			if err := r.checkLabels(nested); err != nil {
				return err
			}
			continue
		}
		image, err := index.Image(one.Digest)
		if err != nil {
			return err
		}
		config, err := image.ConfigFile()
		if err != nil {
			return err
		}
		labels := config.Config.Labels
		if labels["org.opencontainers.image.version"] != r.Version || labels[commitAnnotation] != r.Commit {
			return fmt.Errorf("%s is labelled %v, without version or commit", one.Digest, labels)
		}
	}
	return nil
}

// checkPrograms asks those for this machine for their version.
func (r *release) checkPrograms() error {
	folder, err := os.MkdirTemp("", "release-programs")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	for _, archive := range archives {
		content, err := r.read(r.built(archive, runtime.GOOS+"/"+runtime.GOARCH, ".tar.gz"))
		if err != nil {
			return err
		}
		unzipped, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return err
		}
		if err := extract(unzipped, folder); err != nil {
			return err
		}
	}
	for _, program := range programs {
		out, err := exec.Command(filepath.Join(folder, program), "--version").CombinedOutput() //nolint:gosec,noctx // a program of the release
		if err != nil {
			return fmt.Errorf("%s --version: %w: %s", program, err, out)
		}
		info, err := os.Stat(filepath.Join(folder, program))
		if err != nil {
			return err
		}
		date := info.ModTime().UTC().Format(time.RFC3339) // the commit's, by mod_timestamp in .goreleaser.yaml
		if text := string(out); !strings.Contains(text, r.Version) || !strings.Contains(text, r.Commit) || !strings.Contains(text, date) {
			return fmt.Errorf("%s --version prints %q, without %s, the commit %s or its date %s", program, text, r.Version, r.Commit, date)
		}
	}
	return nil
}

// extract writes the files of a tar archive into a folder.
func extract(from io.Reader, folder string) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := root.MkdirAll(filepath.Dir(header.Name), 0o755); err != nil {
			return err
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := root.WriteFile(header.Name, content, header.FileInfo().Mode().Perm()); err != nil {
			return err
		}
		if err := root.Chtimes(header.Name, header.ModTime, header.ModTime); err != nil {
			return err
		}
	}
}
