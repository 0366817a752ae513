// Command image builds the container image of concord without a container runtime: an OCI layout
// on disk, with one image each for linux/amd64 and linux/arm64, and software bills of materials
// (SPDX) beside it. The same source and Go release give the same digest. It is run in deploy:
//
//	go run ./image --version 0.1.0
//
// There is no base image: concord is one static binary, and runs as user 65532.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/ko/pkg/build"
)

// options are the settings that an image is built with.
type options struct {
	// module is the folder of the module, and program the import path of its main package.
	module, program string
	// version is the image's tag, and commit the commit from which it is built.
	version, commit string
	// created is the image's time of creation: that of the source, for the same digest each time.
	created time.Time
	// platforms are the operating systems and architectures, e.g. linux/amd64.
	platforms []string
	// out is the folder of the layout; the bills of materials come into sbom beside it.
	out string
	// ldflags are flags of the linker.
	ldflags []string
}

// buildPackage holds the variables that say what a program was built from.
const buildPackage = "github.com/concord-dev/concord/build"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var o options
	var platforms string
	var created int64
	flag.StringVar(&o.module, "module", "..", "folder of the module")
	flag.StringVar(&o.program, "program", "github.com/concord-dev/concord/cmd/concord", "import path of the program")
	flag.StringVar(&o.version, "version", "0.1.0", "the image's tag")
	flag.StringVar(&o.commit, "commit", "", "the commit that is built, for concord version and the image's label")
	flag.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "what to build for")
	flag.StringVar(&o.out, "out", "../bin/image", "folder of the OCI layout; its bills of materials are in <out>-sbom")
	flag.Int64Var(&created, "created", 0, "the image's time of creation, in seconds since 1970; the time of the commit gives the same digest each time")
	flag.Parse()
	o.platforms, o.created = strings.Split(platforms, ","), time.Unix(created, 0).UTC()
	o.ldflags = []string{"-s", "-w", "-X=" + buildPackage + ".version=" + o.version, "-X=" + buildPackage + ".commit=" + o.commit, "-X=" + buildPackage + ".date=" + o.created.Format(time.RFC3339)}
	digest, err := o.write(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s@%s\n", o.out, digest)
}

// indexOf is an index of a build's result: for a single platform that is an image.
func indexOf(built build.Result) (v1.ImageIndex, error) {
	image, ok := built.(v1.Image)
	if !ok {
		index, ok := built.(v1.ImageIndex)
		if !ok {
			return nil, fmt.Errorf("neither an image nor an index was built, but a %T", built)
		}
		return index, nil
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()}}), nil
}

// write builds the image and writes its layout in place of an older one.
func (o options) write(ctx context.Context) (v1.Hash, error) {
	builder, err := build.NewGo(ctx, o.module,
		build.WithPlatforms(o.platforms...),
		build.WithBaseImages(func(context.Context, string) (name.Reference, build.Result, error) {
			base, err := scratch(o.platforms)
			return name.MustParseReference("scratch"), base, err
		}),
		build.WithConfig(map[string]build.Config{o.program: {Ldflags: o.ldflags}}),
		build.WithDefaultEnv([]string{"CGO_ENABLED=0", "GOFLAGS=-buildvcs=false"}),
		build.WithTrimpath(true),
		build.WithCreationTime(v1.Time{Time: o.created}), build.WithKoDataCreationTime(v1.Time{Time: o.created}),
		build.WithUser("65532:65532"),
		build.WithLabel("org.opencontainers.image.version", o.version),
		build.WithLabel("org.opencontainers.image.revision", o.commit),
		build.WithLabel("org.opencontainers.image.source", "https://github.com/concord-dev/concord"),
		build.WithLabel("org.opencontainers.image.licenses", "Apache-2.0"),
		build.WithSPDX(o.version), build.WithSBOMDir(o.out+"-sbom"),
	)
	if err != nil {
		return v1.Hash{}, err
	}
	built, err := builder.Build(ctx, build.StrictScheme+o.program)
	if err != nil {
		return v1.Hash{}, err
	}
	index, err := indexOf(built)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return v1.Hash{}, err
	}
	path, err := layout.Write(filepath.Clean(o.out), empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": o.version})); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// scratch is an index of empty images.
func scratch(platforms []string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		platform, err := v1.ParsePlatform(p)
		if err != nil {
			return nil, err
		}
		image, err := mutate.ConfigFile(mutate.MediaType(empty.Image, types.OCIManifestSchema1), &v1.ConfigFile{
			OS: platform.OS, Architecture: platform.Architecture, RootFS: v1.RootFS{Type: "layers"},
		})
		if err != nil {
			return nil, err
		}
		image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform, MediaType: types.OCIManifestSchema1}})
	}
	return index, nil
}
