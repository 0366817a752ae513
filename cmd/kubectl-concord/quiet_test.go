package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2"
)

// TestQuiet: if a server breaks off its answers, the command says so itself, and the log of client-go is not printed.
func TestQuiet(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "1000") // but the body ends earlier
		_, _ = io.WriteString(w, `{"kind":`)
	}))
	defer server.Close()
	defer klog.CaptureState().Restore()
	var logged bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&logged)
	err := statusOf(t, server.URL, io.Discard)
	klog.Flush()
	if err == nil || logged.Len() > 0 {
		t.Errorf("it ends with %v, and the log has\n%s", err, logged.String())
	}
}

// TestWarnings: each warning that an API server sends is printed, once.
func TestWarnings(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Warning", `299 - "this API is deprecated"`)
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`)
	}))
	defer server.Close()
	defer klog.CaptureState().Restore()
	var stderr bytes.Buffer
	if err := statusOf(t, server.URL, &stderr); err == nil || stderr.String() != "Warning: this API is deprecated\n" {
		t.Errorf("it ends with %v and tells %q", err, stderr.String())
	}
}

// statusOf runs "kubectl concord status" for the cluster at an address.
func statusOf(t *testing.T, address string, stderr io.Writer) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "` + address + `"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c", "users": [{"name": "u", "user": {}}]}`
	must(t, os.WriteFile(file, []byte(config), 0o600))
	cmd := newCommand()
	cmd.SetOut(io.Discard)
	cmd.SetErr(stderr)
	cmd.SetArgs([]string{"status", "--kubeconfig", file})
	return cmd.ExecuteContext(t.Context())
}
