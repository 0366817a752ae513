package builtin

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const (
	maxEndpoints         = 1000
	maxEndpointAddresses = 100
	maxEndpointPorts     = 20000
	// shownEndpoints and shownPorts are how many of them a table names.
	shownEndpoints = 3
	shownPorts     = 3
)

func endpointSliceStorage(k kind, g generics) (stores, error) {
	type slice = *discoveryv1.EndpointSlice
	s := newStrategy[slice](true)
	s.unconditional = true
	s.validate = func(_ context.Context, e slice) field.ErrorList { return validateEndpointSlice(e) }
	s.validateUpdate = func(_ context.Context, e, old slice) field.ErrorList {
		return append(validation.ValidateImmutableField(e.AddressType, old.AddressType, field.NewPath("addressType")), validateEndpointSlice(e)...)
	}
	withGeneration(s, func(e slice) any {
		return []any{e.Labels, e.AddressType, e.Endpoints, e.Ports}
	})
	doc := discoveryv1.EndpointSlice{}.SwaggerDoc()
	store, err := newREST(k, g, s, traits[slice]{
		singular: "endpointslice",
		columns: []column[slice]{
			{
				name: "AddressType", typ: "string", description: doc["addressType"],
				cell: func(e slice, _ time.Time) any { return string(e.AddressType) },
			},
			{
				name: "Ports", typ: "string", description: doc["ports"],
				cell: func(e slice, _ time.Time) any { return some(portNumbers(e), shownPorts) },
			},
			{
				name: "Endpoints", typ: "string", description: doc["endpoints"],
				cell: func(e slice, _ time.Time) any { return some(addresses(e), shownEndpoints) },
			},
		},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

func portNumbers(e *discoveryv1.EndpointSlice) []string {
	var numbers []string
	for _, p := range e.Ports {
		numbers = append(numbers, strconv.Itoa(int(ptr.Deref(p.Port, 0))))
	}
	return numbers
}

func addresses(e *discoveryv1.EndpointSlice) []string {
	var all []string
	for _, endpoint := range e.Endpoints {
		all = append(all, endpoint.Addresses...)
	}
	return all
}

// some prints the first items and how many more there are.
func some(items []string, shown int) string {
	if len(items) <= shown {
		return orNone(strings.Join(items, ","))
	}
	return strings.Join(items[:shown], ",") + " + " + strconv.Itoa(len(items)-shown) + " more..."
}

func defaultEndpointSlice(e *discoveryv1.EndpointSlice) {
	for i := range e.Ports {
		if e.Ports[i].Name == nil {
			e.Ports[i].Name = ptr.To("")
		}
		if e.Ports[i].Protocol == nil {
			e.Ports[i].Protocol = ptr.To(corev1.ProtocolTCP)
		}
	}
}

var addressTypes = []discoveryv1.AddressType{discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}

func validateEndpointSlice(e *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	if !slices.Contains(addressTypes, e.AddressType) {
		errs = append(errs, field.NotSupported(field.NewPath("addressType"), e.AddressType, addressTypes))
	}
	if at := field.NewPath("endpoints"); len(e.Endpoints) > maxEndpoints {
		errs = append(errs, field.TooMany(at, len(e.Endpoints), maxEndpoints))
	} else {
		for i, endpoint := range e.Endpoints {
			errs = append(errs, validateAddresses(endpoint.Addresses, e.AddressType, at.Index(i).Child("addresses"))...)
		}
	}
	at := field.NewPath("ports")
	if len(e.Ports) > maxEndpointPorts {
		return append(errs, field.TooMany(at, len(e.Ports), maxEndpointPorts))
	}
	names := map[string]bool{}
	for i, port := range e.Ports {
		name := ptr.Deref(port.Name, "")
		if names[name] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("name"), name))
		}
		names[name] = true
		errs = append(errs, validateEndpointPort(port, at.Index(i))...)
	}
	return errs
}

func validateAddresses(all []string, t discoveryv1.AddressType, p *field.Path) field.ErrorList {
	switch {
	case len(all) == 0:
		return field.ErrorList{field.Required(p, "must contain at least 1 address")}
	case len(all) > maxEndpointAddresses:
		return field.ErrorList{field.TooMany(p, len(all), maxEndpointAddresses)}
	}
	var errs field.ErrorList
	for i, text := range all {
		address, err := netip.ParseAddr(text)
		bad := err != nil || t == discoveryv1.AddressTypeIPv4 && !address.Is4() || t == discoveryv1.AddressTypeIPv6 && !address.Is6()
		if t == discoveryv1.AddressTypeFQDN {
			bad = len(utilvalidation.IsDNS1123Subdomain(text)) > 0
		}
		if bad {
			errs = append(errs, field.Invalid(p.Index(i), text, "must be of the type "+string(t)))
		}
	}
	return errs
}

func validateEndpointPort(port discoveryv1.EndpointPort, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if name := ptr.Deref(port.Name, ""); name != "" {
		for _, msg := range utilvalidation.IsDNS1123Label(name) {
			errs = append(errs, field.Invalid(p.Child("name"), name, msg))
		}
	}
	if protocol := ptr.Deref(port.Protocol, ""); !slices.Contains(protocols, protocol) {
		errs = append(errs, field.NotSupported(p.Child("protocol"), protocol, protocols))
	}
	if port.Port != nil {
		for _, msg := range utilvalidation.IsValidPortNum(int(*port.Port)) {
			errs = append(errs, field.Invalid(p.Child("port"), *port.Port, msg))
		}
	}
	return errs
}
