// Package openapi holds the OpenAPI definitions of the built-in types, generated from
// k8s.io/api: of every type that is served, and of what those refer to.
package openapi

//go:generate go run generate.go
