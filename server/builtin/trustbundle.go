package builtin

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxTrustBundle is the largest trust bundle, in bytes.
const maxTrustBundle = 1 << 20

func clusterTrustBundleStorage(k kind, g generics) (stores, error) {
	type bundle = *certificatesv1.ClusterTrustBundle
	s := newStrategy[bundle](false)
	// The name's form depends on the signer: validateTrustBundle checks it.
	s.name = func(string, bool) []string { return nil }
	s.validate = func(_ context.Context, b bundle) field.ErrorList { return validateTrustBundle(b) }
	s.validateUpdate = func(_ context.Context, b, old bundle) field.ErrorList {
		errs := validation.ValidateImmutableField(b.Spec.SignerName, old.Spec.SignerName, field.NewPath("spec", "signerName"))
		if b.Spec.TrustBundle == old.Spec.TrustBundle {
			return errs
		}
		return append(errs, validateTrustBundle(b)...)
	}
	store, err := newREST(k, g, s, traits[bundle]{
		singular: "clustertrustbundle",
		columns: []column[bundle]{{
			name: "SignerName", typ: "string", description: certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"],
			cell: func(b bundle, _ time.Time) any { return orNone(b.Spec.SignerName) },
		}},
		fields: func(b bundle) fields.Set { return fields.Set{"spec.signerName": b.Spec.SignerName} },
	})
	if err != nil {
		return nil, err
	}
	return stores{"": store}, nil
}

func validateTrustBundle(b *certificatesv1.ClusterTrustBundle) field.ErrorList {
	errs := validateTrustBundleName(b.Name, b.Spec.SignerName)
	p := field.NewPath("spec")
	if b.Spec.SignerName != "" {
		errs = append(errs, validateSignerName(b.Spec.SignerName, p.Child("signerName"))...)
	}
	p = p.Child("trustBundle")
	switch {
	case b.Spec.TrustBundle == "":
		return append(errs, field.Required(p, "at least one PEM certificate is required"))
	case len(b.Spec.TrustBundle) > maxTrustBundle:
		return append(errs, field.TooLong(p, "", maxTrustBundle))
	}
	if err := checkCertificates([]byte(b.Spec.TrustBundle)); err != nil {
		errs = append(errs, field.Invalid(p, "<value omitted>", err.Error()))
	}
	return errs
}

// validateTrustBundleName: a bundle with a signer has the signer's name, with ":" for
// "/", as its prefix; one without has no ":".
func validateTrustBundleName(name, signer string) field.ErrorList {
	p := field.NewPath("metadata", "name")
	rest := name
	if signer != "" {
		prefix := strings.ReplaceAll(signer, "/", ":") + ":"
		after, ok := strings.CutPrefix(name, prefix)
		if !ok {
			return field.ErrorList{field.Invalid(p, name, fmt.Sprintf("must begin with %q, for the signer %s", prefix, signer))}
		}
		rest = after
	} else if strings.Contains(name, ":") {
		return field.ErrorList{field.Invalid(p, name, "must not contain ':' when the bundle has no signer")}
	}
	var errs field.ErrorList
	for _, msg := range validation.NameIsDNSSubdomain(rest, false) {
		errs = append(errs, field.Invalid(p, name, msg))
	}
	return errs
}

// validateSignerName: a signer is named <domain>/<path>, the path of DNS subdomains
// joined by dots.
func validateSignerName(name string, p *field.Path) field.ErrorList {
	domain, path, ok := strings.Cut(name, "/")
	if !ok || path == "" || strings.Contains(path, "/") {
		return field.ErrorList{field.Invalid(p, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	errs := utilvalidation.IsFullyQualifiedDomainName(p, domain)
	for _, msg := range utilvalidation.IsDNS1123Subdomain(path) {
		errs = append(errs, field.Invalid(p, name, msg))
	}
	return errs
}

// checkCertificates says why data is not a sequence of distinct PEM certificates without
// headers.
func checkCertificates(data []byte) error {
	seen := map[string]bool{}
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		n := len(seen)
		switch {
		case block.Type != "CERTIFICATE":
			return fmt.Errorf("entry %d is a %s", n, block.Type)
		case len(block.Headers) > 0:
			return fmt.Errorf("entry %d has PEM headers", n)
		case seen[string(block.Bytes)]:
			return fmt.Errorf("entry %d is there twice", n)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("entry %d does not parse as X.509: %w", n, err)
		}
		seen[string(block.Bytes)] = true
	}
	if len(seen) == 0 {
		return fmt.Errorf("at least one PEM certificate is required")
	}
	if bytes.Contains(data, []byte("-----BEGIN")) {
		return fmt.Errorf("entry %d is not a valid PEM block", len(seen))
	}
	return nil
}
