package builtin

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// maxAffinitySeconds is a day.
const maxAffinitySeconds = 86400

// serviceStorage stores Services, by which APIServices and webhooks name who serves them.
// There is no network here to give them anything: a cluster IP or a node port is what its
// user says, or none.
func serviceStorage(k kind, g generics) (stores, error) {
	type service = *corev1.Service
	s := newStrategy[service](true)
	s.unconditional = true
	s.createOnUpdate = true
	s.name = validation.NameIsDNS1035Label
	s.reset = k.resetFields("status")
	s.prepareCreate = func(_ context.Context, svc service) {
		svc.Status = corev1.ServiceStatus{}
		linkAddresses(&svc.Spec, &corev1.ServiceSpec{})
	}
	s.prepareUpdate = func(_ context.Context, svc, old service) {
		svc.Status = old.Status
		linkAddresses(&svc.Spec, &old.Spec)
		dropOfType(&svc.Spec, &old.Spec)
	}
	s.validate = func(_ context.Context, svc service) field.ErrorList { return validateService(svc) }
	parent, err := newREST(k, g, s, traits[service]{
		singular:   "service",
		shortNames: []string{"svc"},
		categories: []string{"all"},
		columns:    serviceColumns(),
	})
	if err != nil {
		return nil, err
	}
	status := s.sub(func(_ context.Context, svc, old service) { svc.Spec = old.Spec }, func(_ context.Context, svc, _ service) field.ErrorList {
		return metav1validation.ValidateConditions(svc.Status.Conditions, field.NewPath("status", "conditions"))
	})
	status.reset = k.resetFields("spec")
	return stores{"": parent, "status": newSubresource(parent.Store, status)}, nil
}

func serviceColumns() []column[*corev1.Service] {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	col := func(name, description string, wide bool, cell func(*corev1.Service) string) column[*corev1.Service] {
		return column[*corev1.Service]{
			name: name, typ: "string", description: description, wide: wide,
			cell: func(svc *corev1.Service, _ time.Time) any { return cell(svc) },
		}
	}
	return []column[*corev1.Service]{
		col("Type", doc["type"], false, func(svc *corev1.Service) string { return string(svc.Spec.Type) }),
		col("Cluster-IP", doc["clusterIP"], false, func(svc *corev1.Service) string { return orNone(svc.Spec.ClusterIP) }),
		col("External-IP", doc["externalIPs"], false, func(svc *corev1.Service) string {
			return orNone(strings.Join(slices.DeleteFunc(append([]string{svc.Spec.ExternalName}, svc.Spec.ExternalIPs...), func(s string) bool { return s == "" }), ","))
		}),
		col("Port(s)", doc["ports"], false, func(svc *corev1.Service) string { return printPorts(svc.Spec.Ports) }),
		col("Selector", doc["selector"], true, func(svc *corev1.Service) string { return orNone(labels.FormatLabels(svc.Spec.Selector)) }),
	}
}

func printPorts(ports []corev1.ServicePort) string {
	var texts []string
	for _, p := range ports {
		text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			text = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
		texts = append(texts, text)
	}
	return orNone(strings.Join(texts, ","))
}

func defaultService(svc *corev1.Service) {
	spec := &svc.Spec
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == (intstr.IntOrString{}) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	switch {
	case spec.SessionAffinity == corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case spec.SessionAffinity == corev1.ServiceAffinityClientIP && (spec.SessionAffinityConfig == nil || spec.SessionAffinityConfig.ClientIP == nil || spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == nil):
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(corev1.DefaultClientIPServiceAffinitySeconds)}}
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if onNodes(spec.Type) && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.AllocateLoadBalancerNodePorts == nil {
		spec.AllocateLoadBalancerNodePorts = ptr.To(true)
	}
	if spec.InternalTrafficPolicy == nil {
		spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyCluster)
	}
}

// linkAddresses has the list of cluster IPs follow the one cluster IP where a client set or
// removed that alone, as kubectl apply does: its manifests seldom have the list.
func linkAddresses(spec, old *corev1.ServiceSpec) {
	switch {
	case spec.ClusterIP == old.ClusterIP && len(spec.ClusterIPs) == 0:
		spec.ClusterIPs = slices.Clone(old.ClusterIPs)
	case spec.ClusterIP == old.ClusterIP || len(spec.ClusterIPs) > 0 && !slices.Equal(spec.ClusterIPs, old.ClusterIPs):
		// What the client says of the list stands.
	case spec.ClusterIP == "":
		spec.ClusterIPs = nil
	default:
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

// dropOfType removes what only a Service of its former type can have, unless the client
// changed that, too: then it is an error.
func dropOfType(spec, old *corev1.ServiceSpec) {
	if spec.Type == corev1.ServiceTypeExternalName && old.Type != spec.Type && slices.Equal(spec.ClusterIPs, old.ClusterIPs) {
		spec.ClusterIP, spec.ClusterIPs = "", nil
	}
	if onNodes(old.Type) && !onNodes(spec.Type) {
		for i := range spec.Ports {
			p := &spec.Ports[i]
			if slices.ContainsFunc(old.Ports, func(o corev1.ServicePort) bool { return o.NodePort == p.NodePort }) {
				p.NodePort = 0
			}
		}
		if spec.ExternalTrafficPolicy == old.ExternalTrafficPolicy {
			spec.ExternalTrafficPolicy = ""
		}
	}
	if spec.Type != old.Type && old.Type == corev1.ServiceTypeLoadBalancer && ptr.Equal(spec.AllocateLoadBalancerNodePorts, old.AllocateLoadBalancerNodePorts) {
		spec.AllocateLoadBalancerNodePorts = nil
	}
}

// onNodes says whether Services of a type are reached at ports of nodes.
func onNodes(t corev1.ServiceType) bool {
	return t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer
}

var serviceTypes = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName}

func validateService(svc *corev1.Service) field.ErrorList {
	spec, p := &svc.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if !slices.Contains(serviceTypes, spec.Type) {
		errs = append(errs, field.NotSupported(p.Child("type"), spec.Type, serviceTypes))
	}
	affinities := []corev1.ServiceAffinity{corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone}
	if !slices.Contains(affinities, spec.SessionAffinity) {
		errs = append(errs, field.NotSupported(p.Child("sessionAffinity"), spec.SessionAffinity, affinities))
	}
	errs = append(errs, metav1validation.ValidateLabels(spec.Selector, p.Child("selector"))...)
	errs = append(errs, validateServiceAddress(spec, p)...)
	if len(spec.Ports) == 0 && spec.ClusterIP != corev1.ClusterIPNone && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(p.Child("ports"), ""))
	}
	type place struct {
		protocol corev1.Protocol
		port     int32
	}
	names, places := map[string]bool{}, map[place]bool{}
	for i, port := range spec.Ports {
		at, here := p.Child("ports").Index(i), place{port.Protocol, port.Port}
		if names[port.Name] && port.Name != "" {
			errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
		}
		if places[here] {
			errs = append(errs, field.Duplicate(at, fmt.Sprintf("%d/%s", port.Port, port.Protocol)))
		}
		names[port.Name], places[here] = true, true
		if port.NodePort != 0 && !onNodes(spec.Type) {
			errs = append(errs, field.Forbidden(at.Child("nodePort"), "may not be used when `type` is '"+string(spec.Type)+"'"))
		}
		errs = append(errs, validateServicePort(port, len(spec.Ports) > 1, at)...)
	}
	return append(errs, validateTraffic(spec, p)...)
}

// validateTraffic checks how traffic is to be led to a Service's endpoints.
func validateTraffic(spec *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	internal := []corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}
	if t := spec.InternalTrafficPolicy; t != nil && !slices.Contains(internal, *t) {
		errs = append(errs, field.NotSupported(p.Child("internalTrafficPolicy"), *t, internal))
	}
	external := []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal}
	if t := spec.ExternalTrafficPolicy; t != "" && !slices.Contains(external, t) {
		errs = append(errs, field.NotSupported(p.Child("externalTrafficPolicy"), t, external))
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if seconds := *c.ClientIP.TimeoutSeconds; seconds < 1 || seconds > maxAffinitySeconds {
			errs = append(errs, field.Invalid(p.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), seconds, fmt.Sprintf("must be greater than 0 and at most %d", maxAffinitySeconds)))
		}
	}
	return errs
}

// validateServiceAddress checks where a Service is reached: under a name, at one address of
// each IP family, or nowhere but at its endpoints.
func validateServiceAddress(spec *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Type == corev1.ServiceTypeExternalName {
		if len(spec.ClusterIPs) > 0 || spec.ClusterIP != "" {
			errs = append(errs, field.Forbidden(p.Child("clusterIP"), "may not be set when `type` is ExternalName"))
		}
		for _, msg := range utilvalidation.IsDNS1123Subdomain(strings.TrimSuffix(spec.ExternalName, ".")) {
			errs = append(errs, field.Invalid(p.Child("externalName"), spec.ExternalName, msg))
		}
		return errs
	}
	if len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] != spec.ClusterIP {
		errs = append(errs, field.Invalid(p.Child("clusterIPs"), spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	families := map[bool]bool{}
	for i, text := range spec.ClusterIPs {
		if text == corev1.ClusterIPNone && len(spec.ClusterIPs) == 1 {
			continue
		}
		address, err := netip.ParseAddr(text)
		if err != nil || families[address.Is4()] {
			errs = append(errs, field.Invalid(p.Child("clusterIPs").Index(i), text, "must be None, or one IP address of each family"))
		}
		families[address.Is4()] = true
	}
	return errs
}

var protocols = []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}

func validateServicePort(port corev1.ServicePort, named bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	invalid := func(name string, value any, msgs []string) {
		for _, msg := range msgs {
			errs = append(errs, field.Invalid(p.Child(name), value, msg))
		}
	}
	switch {
	case port.Name != "":
		invalid("name", port.Name, utilvalidation.IsDNS1123Label(port.Name))
	case named:
		errs = append(errs, field.Required(p.Child("name"), ""))
	}
	if port.NodePort != 0 {
		invalid("nodePort", port.NodePort, utilvalidation.IsValidPortNum(int(port.NodePort)))
	}
	invalid("port", port.Port, utilvalidation.IsValidPortNum(int(port.Port)))
	if !slices.Contains(protocols, port.Protocol) {
		errs = append(errs, field.NotSupported(p.Child("protocol"), port.Protocol, protocols))
	}
	if port.TargetPort.Type == intstr.Int {
		invalid("targetPort", port.TargetPort, utilvalidation.IsValidPortNum(port.TargetPort.IntValue()))
	} else {
		invalid("targetPort", port.TargetPort, utilvalidation.IsValidPortName(port.TargetPort.StrVal))
	}
	return errs
}
