package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/concord-dev/concord/verdict"
)

// rules are a server's rules for new writes, as far as they differ from those of servers of this release.
type rules struct {
	// release is the release that the server is of, or emulates. expressions is the release with which its CEL
	// expressions have to be compatible.
	release, expressions *version.Version
	// known is the CEL environment in which the server compiles new expressions, and all that of this release.
	known, all *cel.Env
	// has are the names of known's functions and macros, and lacks the names that only all has.
	has, lacks sets.Set[string]
}

func rulesOf(release, expressions *version.Version) rules {
	set := environment.MustBaseEnvSet(expressions)
	r := rules{release: release, expressions: expressions, known: set.NewExpressionsEnv(), all: set.StoredExpressionsEnv()}
	r.has = names(r.known)
	r.lacks = names(r.all).Difference(r.has)
	return r
}

// services are the objects whose names RelaxedServiceNameValidation is about, which is on since
// this release.
var (
	services     = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	relaxedNames = version.MajorMinor(1, 36)
	definitions  = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// expressive are the resources whose objects have CEL expressions.
var expressive = []schema.GroupVersionResource{
	definitions,
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingadmissionpolicies"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
	{Group: "resource.k8s.io", Version: "v1", Resource: "deviceclasses"},
	{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},
	{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaimtemplates"},
}

// resources returns the resources whose objects the rules may concern.
func (r rules) resources() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	if r.lacks.Len() > 0 {
		all = append(all, expressive...)
	}
	if r.release.LessThan(relaxedNames) {
		all = append(all, services)
	}
	return all
}

// of returns what the server would refuse in an object.
func (r rules) of(gvr schema.GroupVersionResource, object map[string]any) (found []string) {
	if gvr == services {
		name, _, _ := unstructured.NestedString(object, "metadata", "name") // every object has one
		if len(validation.IsDNS1035Label(name)) > 0 {
			found = append(found, fmt.Sprintf("its name, which has to begin with a letter in %s", r.release))
		}
		return found
	}
	functions := sets.New[string]()
	for _, expression := range expressionsIn(object, gvr == definitions) {
		functions.Insert(r.missing(expression)...)
	}
	if functions.Len() > 0 {
		found = append(found, fmt.Sprintf("CEL expressions with %s, which is newer than %s", strings.Join(sets.List(functions), ", "), r.expressions))
	}
	return found
}

// expressionFields are the names of fields that hold CEL expressions, wherever they are in an
// object of the expressive resources.
var expressionFields = sets.New("expression", "rule", "messageExpression", "valueExpression")

// schemaRules is where a definition has them; elsewhere its fields have names of other people's.
const schemaRules = "x-kubernetes-validations"

// expressionsIn are the CEL expressions in a value.
func expressionsIn(value any, inSchema bool) (all []string) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			text, isText := v[name].(string)
			if isText && !inSchema && expressionFields.Has(name) {
				all = append(all, text)
			}
			all = append(all, expressionsIn(v[name], inSchema && name != schemaRules)...)
		}
	case []any:
		for _, item := range v {
			all = append(all, expressionsIn(item, inSchema)...)
		}
	}
	return all
}

// names returns the names of functions, and of macros with their number of arguments.
func names(env *cel.Env) sets.Set[string] {
	all := sets.KeySet(env.Functions())
	for _, m := range env.Macros() {
		all.Insert(fmt.Sprintf("%s with %d arguments", m.Function(), m.ArgCount()))
	}
	return all
}

// missing returns the functions of an expression that the server does not have. A function that no server has, or an
// expression that no server can parse, makes no difference.
func (r rules) missing(expression string) []string {
	parsed, issues := r.known.Parse(expression)
	if issues.Err() != nil {
		if _, issues := r.all.Parse(expression); issues.Err() == nil {
			return []string{"syntax"}
		}
		return nil
	}
	found := sets.New[string]()
	celast.PreOrderVisit(parsed.NativeRep().Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		if e.Kind() != celast.CallKind {
			return
		}
		call := e.AsCall()
		macro := fmt.Sprintf("%s with %d arguments", call.FunctionName(), len(call.Args()))
		var qualified string
		if call.IsMemberFunction() && call.Target().Kind() == celast.IdentKind {
			qualified = call.Target().AsIdent() + "." + call.FunctionName()
		}
		switch {
		case r.has.HasAny(call.FunctionName(), qualified):
		case r.lacks.Has(qualified):
			found.Insert(qualified)
		case r.lacks.Has(macro):
			found.Insert(macro)
		case r.lacks.Has(call.FunctionName()):
			found.Insert(call.FunctionName())
		}
	}))
	return sets.List(found)
}

// warnings names the objects that do not follow the rules; unread names the resources that could not
// be looked at.
func (r rules) warnings(ctx context.Context, world *World) (all []verdict.Warning, unread error) {
	for _, gvr := range r.resources() {
		err := world.List(ctx, gvr, func(o *unstructured.Unstructured) {
			for _, text := range r.of(gvr, o.Object) {
				all = append(all, verdict.Warning{Resource: gvr.GroupResource().String(), Object: nameOf(o), About: text})
			}
		})
		if err != nil {
			unread = errors.Join(unread, fmt.Errorf("%s: %w", gvr.GroupResource(), err))
		}
	}
	return all, unread
}

func nameOf(o *unstructured.Unstructured) string {
	return strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}
