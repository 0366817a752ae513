package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/stored/storedtest"
)

// TestRunRefusesUndecodableStorage asserts that the check stands before serving.
func TestRunRefusesUndecodableStorage(t *testing.T) {
	policies := schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}
	etcd := storedtest.Start(t)
	values := storedtest.Agreed(t)
	values[storedtest.StateKey(policies)] = storedtest.State(t, policies, 1, "admissionregistration.k8s.io/v2", "admissionregistration.k8s.io/v1")
	o, err := parse(t, "--etcd-servers="+etcd.Endpoints()[0], "--etcd-prefix="+etcd.Fill(t, values), "--secure-port=0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = Run(ctx, o, func(*Server) { cancel() })
	if err == nil || !strings.Contains(err.Error(), policies.String()+" as admissionregistration.k8s.io/v2") {
		t.Errorf("got %v", err)
	}
}
