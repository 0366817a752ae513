package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// TestChart: the packed chart has the version of the release and installs its image.
func TestChart(t *testing.T) {
	name, err := pack("../chart", "1.2.3", commit, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	chart, err := loader.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	image, _ := chart.Values["image"].(map[string]any)
	if filepath.Base(name) != "concord-1.2.3.tgz" || chart.AppVersion() != "1.2.3" || image["tag"] != "1.2.3" || chart.Metadata.Annotations[commitAnnotation] != commit || len(chart.CRDObjects()) == 0 {
		t.Errorf("%s is of %s, installs the image %v and has %d definitions", name, chart.AppVersion(), image, len(chart.CRDObjects()))
	}
	if _, err := pack("../chart", "latest", commit, t.TempDir()); err == nil {
		t.Error("a version that is none was taken")
	}
}

// built writes a release with one file, its checksums.txt and its provenance; these are those of a
// file with the text "content".
func built(t *testing.T, content string) release {
	t.Helper()
	folder := t.TempDir()
	sum := sha256.Sum256([]byte("content"))
	checksums := filepath.Join(folder, "checksums.txt")
	for name, text := range map[string]string{
		"file.tgz": content, "checksums.txt": hex.EncodeToString(sum[:]) + "  file.tgz\n",
		"metadata.json": `{"version": "1.2.3", "commit": "` + commit + `"}`,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeProvenance(checksums, "1.2.3", commit, filepath.Join(folder, "provenance.intoto.json")); err != nil {
		t.Fatal(err)
	}
	return release{folders: []string{t.TempDir(), folder}, Version: "1.2.3", Commit: commit}
}

// TestCheckPrograms: a program that does not tell the version, the commit or the commit's date is found.
func TestCheckPrograms(t *testing.T) {
	for text, good := range map[string]bool{
		"1.2.3 " + commit + " 2027-01-01T00:00:00Z": true, "1.2.3 " + commit + " 2027-01-02T00:00:00Z": false,
		"1.2.4 " + commit + " 2027-01-01T00:00:00Z": false, "1.2.3 2027-01-01T00:00:00Z": false,
	} {
		r := release{folders: []string{t.TempDir()}, Version: "1.2.3", Commit: commit}
		archive := packed(t, programs, "#!/bin/sh\necho '"+text+"'\n", time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))
		for _, name := range archives {
			if err := os.WriteFile(filepath.Join(r.folders[0], r.built(name, runtime.GOOS+"/"+runtime.GOARCH, ".tar.gz")), archive, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.checkPrograms(); (err == nil) != good {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// packed returns an archive of programs with the same content.
func packed(t *testing.T, names []string, content string, modified time.Time) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	files := tar.NewWriter(zip)
	for _, name := range names {
		if err := files.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content)), ModTime: modified}); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(files.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestCheck: a file with another checksum is found, and so is a provenance with another commit or
// other files.
func TestCheck(t *testing.T) {
	good := built(t, "content")
	if err := good.checkSums(); err != nil {
		t.Fatal(err)
	}
	if err := good.checkProvenance(); err != nil {
		t.Fatal(err)
	}
	if err := good.check(); err == nil || !strings.Contains(err.Error(), "file.tgz is no part of a release") ||
		!strings.Contains(err.Error(), "concord-1.2.3.tgz has no checksum") {
		t.Errorf("a release of one file is found to have %v", err)
	}
	good.Commit = strings.Repeat("f", 40)
	if err := good.checkProvenance(); err == nil {
		t.Error("a provenance of another commit was taken")
	}
	good.sums["file.tgz"] = strings.Repeat("0", 64)
	if err := good.checkProvenance(); err == nil {
		t.Error("a provenance of another file was taken")
	}
	bad := built(t, "another content")
	if err := bad.checkSums(); err == nil {
		t.Error("another file than that of the checksum was taken")
	}
	if _, err := parseChecksums("no checksum"); err == nil {
		t.Error("a line without a name was taken")
	}
}
