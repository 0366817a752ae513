// Package stock keeps stored objects in one version beside kube-apiservers that stay as they
// are and report nothing. It asks each of them for its storage versions, lets the
// controllers of the protocol work on the answers, migrates through the API, proves by behaviour
// that nothing else is stored, and prunes a definition's storedVersions after a while. There is
// no fence, as there is with servers that report: a server that was paused can still write
// another version afterwards.
package stock
