package builtin

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxServiceCIDRs: one for each IP family.
const maxServiceCIDRs = 2

func ipAddressStorage(k kind, g generics) (stores, error) {
	type address = *networkingv1.IPAddress
	s := newStrategy[address](false)
	s.unconditional = true
	s.name = validateIPName
	s.validate = func(_ context.Context, a address) field.ErrorList {
		return validateParent(a.Spec.ParentRef, field.NewPath("spec", "parentRef"))
	}
	s.validateUpdate = func(_ context.Context, a, old address) field.ErrorList {
		return validation.ValidateImmutableField(a.Spec.ParentRef, old.Spec.ParentRef, field.NewPath("spec", "parentRef"))
	}
	store, err := newREST(k, g, s, traits[address]{
		singular:   "ipaddress",
		shortNames: []string{"ip"},
		columns: []column[address]{{
			name: "ParentRef", typ: "string", description: networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"],
			cell: func(a address, _ time.Time) any { return printParent(a.Spec.ParentRef) },
		}},
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

// validateIPName: an address has one name, its canonical form.
func validateIPName(name string, _ bool) []string {
	address, err := netip.ParseAddr(name)
	if err != nil || address.Zone() != "" || address.Is4In6() || address.String() != name {
		return []string{"must be a valid IP address in canonical form"}
	}
	return nil
}

func validateParent(ref *networkingv1.ParentReference, p *field.Path) field.ErrorList {
	if ref == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	if ref.Group != "" {
		for _, msg := range utilvalidation.IsDNS1123Subdomain(ref.Group) {
			errs = append(errs, field.Invalid(p.Child("group"), ref.Group, msg))
		}
	}
	for _, part := range []struct {
		name, value string
		required    bool
	}{{"resource", ref.Resource, true}, {"name", ref.Name, true}, {"namespace", ref.Namespace, false}} {
		if part.value == "" {
			if part.required {
				errs = append(errs, field.Required(p.Child(part.name), ""))
			}
			continue
		}
		for _, msg := range path.IsValidPathSegmentName(part.value) {
			errs = append(errs, field.Invalid(p.Child(part.name), part.value, msg))
		}
	}
	return errs
}

// printParent prints "<resource>[.<group>]/[<namespace>/]<name>".
func printParent(ref *networkingv1.ParentReference) string {
	if ref == nil {
		return "<none>"
	}
	resource := ref.Resource
	if ref.Group != "" {
		resource += "." + ref.Group
	}
	parts := []string{resource, ref.Namespace, ref.Name}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "/")
}

func serviceCIDRStorage(k kind, g generics) (stores, error) {
	type cidr = *networkingv1.ServiceCIDR
	s := newStrategy[cidr](false)
	s.unconditional = true
	s.reset = k.resetFields("status")
	s.prepareCreate = func(_ context.Context, c cidr) { c.Status = networkingv1.ServiceCIDRStatus{} }
	s.prepareUpdate = func(_ context.Context, c, old cidr) { c.Status = old.Status }
	s.validate = func(_ context.Context, c cidr) field.ErrorList {
		return validateCIDRs(c.Spec.CIDRs, field.NewPath("spec", "cidrs"))
	}
	s.validateUpdate = func(_ context.Context, c, old cidr) field.ErrorList {
		return validateCIDRsUpdate(c.Spec.CIDRs, old.Spec.CIDRs, field.NewPath("spec", "cidrs"))
	}
	parent, err := newREST(k, g, s, traits[cidr]{
		singular: "servicecidr",
		columns: []column[cidr]{{
			name: "CIDRs", typ: "string", description: networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"],
			cell: func(c cidr, _ time.Time) any { return strings.Join(c.Spec.CIDRs, ",") },
		}},
	})
	if err != nil {
		return nil, err
	}
	status := s.sub(func(_ context.Context, c, old cidr) {
		c.Spec = old.Spec
		metav1.ResetObjectMetaForStatus(c, old)
	}, func(_ context.Context, c, _ cidr) field.ErrorList { return validateConditions(c.Status.Conditions) })
	status.reset = k.resetFields("metadata", "spec")
	return stores{"": parent, "status": newSubresource(parent.Store, status)}, nil
}

// validateCIDRs: one range, or two of different families, in canonical form.
func validateCIDRs(cidrs []string, p *field.Path) field.ErrorList {
	switch {
	case len(cidrs) == 0:
		return field.ErrorList{field.Required(p, "at least one CIDR is required")}
	case len(cidrs) > maxServiceCIDRs:
		return field.ErrorList{field.TooMany(p, len(cidrs), maxServiceCIDRs)}
	}
	var errs field.ErrorList
	families := map[bool]bool{}
	for i, cidr := range cidrs {
		prefix, err := netip.ParsePrefix(cidr)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(p.Index(i), cidr, "must be an IP range, such as 10.9.8.0/24 or 2001:db8::/64"))
			continue
		case prefix.Addr().Is4In6() || prefix.Masked().String() != cidr:
			errs = append(errs, field.Invalid(p.Index(i), cidr, "must be in canonical form ("+prefix.Masked().String()+")"))
		case families[prefix.Addr().Is4()]:
			errs = append(errs, field.Invalid(p, cidrs, "must have at most one range of each IP family"))
		}
		families[prefix.Addr().Is4()] = true
	}
	return errs
}

// validateCIDRsUpdate: ranges never change, except that a second family may be added.
func validateCIDRsUpdate(cidrs, old []string, p *field.Path) field.ErrorList {
	if slices.Equal(cidrs, old) {
		return nil
	}
	if len(old) == 1 && len(cidrs) == maxServiceCIDRs && cidrs[0] == old[0] {
		return validateCIDRs(cidrs, p)
	}
	return field.ErrorList{field.Invalid(p, cidrs, validation.FieldImmutableErrorMsg)}
}
