package demo

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// childVariable makes the test binary a server that fails.
const childVariable = "CONCORD_DEMO_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
		os.Exit(m.Run())
	case "failing":
		for i := range 100 {
			fmt.Println("line", i)
		}
		os.Exit(3)
	}
}

// TestRunReportsAServerThatDoesNotStart asserts that nothing is left behind, too.
func TestRunReportsAServerThatDoesNotStart(t *testing.T) {
	t.Setenv(childVariable, "failing")
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	_, err := Run(t.Context(), Config{Objects: MinObjects})
	if err == nil || !strings.Contains(err.Error(), "server-1 stopped: exit status 3") {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		{Config{Objects: 3}, "at least 4 objects"},
		{Config{Objects: -1}, "at least 4 objects"},
		{Config{Writers: -1}, "writers must be positive"},
		{Config{LeaseDuration: 1500 * time.Millisecond}, "whole seconds"},
		{Config{LeaseDuration: time.Second}, "at least 3s"},
	} {
		err := tt.cfg.Validate()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Validate(%+v) = %v, want %q", tt.cfg, err, tt.want)
		}
	}
}
