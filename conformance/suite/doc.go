// Package suite is the part of Kubernetes' own e2e suite whose specs can run where there are
// neither nodes nor pods: a test binary of upstream's packages, and nothing of ours.
package suite
