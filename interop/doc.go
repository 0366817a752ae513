// Package interop runs concord controllers beside Kubernetes' own programs, built from the
// released modules: kube-apiserver, and kube-controller-manager with its migrator. It is a
// module of its own, since these need more modules than all the rest.
//
//	go test .                # of the release that go.mod names
//	go test . -release 1.36  # of an older one
package interop
