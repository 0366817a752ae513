package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGenerated: the generated files are up to date.
func TestGenerated(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || string(got) != want {
			t.Errorf("%s is not what its source makes of it now (error %v): run make manifests and commit", path, err)
		}
	}
}
