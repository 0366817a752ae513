// Package planning plans which APIs a control plane built from k8s.io/kubernetes serves and how it stores them (KEP-4330).
// It reads in which releases each version of each built-in resource exists out of Kubernetes' own types, lets package compat
// decide, and applies the decisions to the configuration that Kubernetes builds its servers from.
package planning
