package compat

import (
	"encoding/json"
	"testing"
)

const printed = `
core                         v1       configmaps                1.2  -    -
admissionregistration.k8s.io v1       mutatingadmissionpolicies 1.36 -    -
admissionregistration.k8s.io v1beta1  mutatingadmissionpolicies 1.34 1.37 1.40
authentication.k8s.io        v1       selfsubjectreviews        1.28 -    -    notpersisted`

func TestPlanTable(t *testing.T) {
	const want = `binary 1.37, emulation 1.36, min compatibility 1.35

GROUP                         RESOURCE                   VERSION  SERVED  STORAGE VERSION                       REASON
core                          configmaps                 v1       yes     v1                                    stable since 1.2
admissionregistration.k8s.io  mutatingadmissionpolicies  v1       yes     admissionregistration.k8s.io/v1beta1  stable since 1.36
admissionregistration.k8s.io  mutatingadmissionpolicies  v1beta1  no      admissionregistration.k8s.io/v1beta1  beta since 1.34; off by default, --runtime-config=admissionregistration.k8s.io/v1beta1=true enables it
authentication.k8s.io         selfsubjectreviews         v1       yes     -                                     stable since 1.28
`
	if got := mustPlan(t, lifecycles(t, printed), options(t, Binary, "1.36", "")).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPlanRowsJSON(t *testing.T) {
	const want = `[{"group":"","version":"v1","resource":"configmaps","served":true,"reason":"stable since 1.2","storageVersion":"v1"},` +
		`{"group":"admissionregistration.k8s.io","version":"v1","resource":"mutatingadmissionpolicies","served":true,"reason":"stable since 1.36","storageVersion":"admissionregistration.k8s.io/v1"},` +
		`{"group":"admissionregistration.k8s.io","version":"v1beta1","resource":"mutatingadmissionpolicies","served":false,` +
		`"reason":"beta since 1.34, deprecated in 1.37, will be removed in 1.40; off by default, --runtime-config=admissionregistration.k8s.io/v1beta1=true enables it",` +
		`"storageVersion":"admissionregistration.k8s.io/v1"},` +
		`{"group":"authentication.k8s.io","version":"v1","resource":"selfsubjectreviews","served":true,"reason":"stable since 1.28","storageVersion":""}]`
	got, err := json.Marshal(mustPlan(t, lifecycles(t, printed), Options{}).Rows())
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
