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

// TestQuiet: where a server breaks off its answers, a command says so itself, and the client library's log is not printed.
func TestQuiet(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "1000") // and no more than this is sent of it
		_, _ = io.WriteString(w, `{"kind":`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "` + server.URL + `"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c", "users": [{"name": "u", "user": {}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	defer klog.CaptureState().Restore()
	var logged bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&logged)
	cmd := newCommand()
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"status", "--kubeconfig", file})
	err := cmd.ExecuteContext(t.Context())
	klog.Flush()
	if err == nil || logged.Len() > 0 {
		t.Errorf("it ends with %v, and the log has\n%s", err, logged.String())
	}
}
