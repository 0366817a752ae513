package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func hello(t *testing.T) options {
	t.Helper()
	return options{
		module: "testdata/hello", program: "example.com/hello", version: "1.2.3", commit: "c0ffee", created: time.Unix(1_700_000_000, 0).UTC(),
		platforms: []string{"linux/amd64", "linux/arm64"}, out: filepath.Join(t.TempDir(), "image"), ldflags: []string{"-s", "-w", "-X=main.version=1.2.3"},
	}
}

// written reads the index of an OCI layout and its manifest.
func written(t *testing.T, o options, digest v1.Hash) (v1.ImageIndex, *v1.IndexManifest) {
	t.Helper()
	path, err := layout.FromPath(o.out)
	must(t, err)
	root, err := path.ImageIndex()
	must(t, err)
	if err := validate.Index(root); err != nil {
		t.Error(err)
	}
	index, err := root.ImageIndex(digest)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	return index, manifest
}

// TestImage builds the image of a small program twice: the digest is the same both times, and the
// layout has what a Pod with the manifests of controllers needs.
func TestImage(t *testing.T) {
	first, second := hello(t), hello(t)
	digest, err := first.write(t.Context())
	must(t, err)
	again, err := second.write(t.Context())
	must(t, err)
	if digest != again {
		t.Errorf("built twice the digests are %s and %s", digest, again)
	}
	index, manifest := written(t, first, digest)
	var platforms []string
	for _, m := range manifest.Manifests {
		platforms = append(platforms, m.Platform.String())
		image, err := index.Image(m.Digest)
		must(t, err)
		holds(t, image, m.Platform)
	}
	if !slices.Equal(platforms, first.platforms) {
		t.Errorf("it is for %v", platforms)
	}
	for _, bill := range []string{"hello-linux-amd64.spdx.json", "hello-linux-arm64.spdx.json", "hello-index.spdx.json"} {
		one, err := os.ReadFile(filepath.Join(first.out+"-sbom", bill))
		if err != nil {
			t.Error(err)
			continue
		}
		two, err := os.ReadFile(filepath.Join(second.out+"-sbom", bill))
		if err != nil || string(one) != string(two) {
			t.Errorf("%s differs when built again: %v", bill, err)
		}
		if !strings.Contains(string(one), "SPDX-2.3") {
			t.Errorf("%s is no SPDX document", bill)
		}
	}
}

func holds(t *testing.T, image v1.Image, platform *v1.Platform) {
	t.Helper()
	config, err := image.ConfigFile()
	must(t, err)
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/ko-app/hello"}) ||
		config.Architecture != platform.Architecture || config.Config.Labels["org.opencontainers.image.version"] != "1.2.3" ||
		config.Config.Labels["org.opencontainers.image.revision"] != "c0ffee" ||
		!config.Created.Equal(time.Unix(1_700_000_000, 0)) {
		t.Errorf("%s: %+v", platform, config)
	}
	files := mutate.Extract(image)
	defer func() { _ = files.Close() }()
	var program bool
	for reader := tar.NewReader(files); ; {
		file, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if file.Typeflag == tar.TypeReg {
			program = program || file.Name == "/ko-app/hello" || file.Name == "ko-app/hello"
			if file.Mode&0o022 != 0 || file.Mode&0o555 != 0o555 {
				t.Errorf("%s: %s has mode %o", platform, file.Name, file.Mode)
			}
		}
	}
	if !program {
		t.Errorf("%s: the program is not there", platform)
	}
}

// TestChange: another source gives another digest.
func TestChange(t *testing.T) {
	one, other := hello(t), hello(t)
	other.ldflags = []string{"-s", "-w", "-X=main.version=1.2.4"}
	a, err := one.write(t.Context())
	must(t, err)
	b, err := other.write(t.Context())
	if err != nil || a == b {
		t.Errorf("digests %s and %s, error %v", a, b, err)
	}
}

// TestOnePlatform: the layout for a single platform has an index, too, of one image.
func TestOnePlatform(t *testing.T) {
	o := hello(t)
	o.platforms = []string{"linux/arm64"}
	digest, err := o.write(t.Context())
	must(t, err)
	_, manifest := written(t, o, digest)
	if m := manifest.Manifests; len(m) != 1 || m[0].Platform == nil || m[0].Platform.Architecture != "arm64" {
		t.Errorf("it holds %+v", m)
	}
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
