// Package plugin tests kubectl concord beside stock kube-apiservers and our controllers.
package plugin
