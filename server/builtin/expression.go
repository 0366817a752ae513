package builtin

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// The CEL expressions of webhooks and policies. One that is new to its object may use only
// what the minimum compatibility version knows; one that the object already had may use
// all that this binary knows, so that it stays valid when the version is lowered
// (KEP-4330, "CEL Environment Compatibility Versioning").

// An expression is one of an object's, with the field that holds it and the variables
// that it may name beyond those that all may.
type expression struct {
	plugincel.ExpressionAccessor
	field    *field.Path
	declared plugincel.OptionalVariableDeclarations
}

// same says that two expressions compile alike: the field that holds them does not matter.
func (e expression) same(other expression) bool {
	return e.declared == other.declared && reflect.DeepEqual(e.ExpressionAccessor, other.ExpressionAccessor)
}

// A use is an expression in its role; the accessors have one type for each role.
type use struct {
	role reflect.Type
	text string
}

func (e expression) use() use { return use{reflect.TypeOf(e.ExpressionAccessor), e.GetExpression()} }

// expressions compiles expressions. Its compilers are made when they are first needed:
// each has an environment for every set of variables.
type expressions struct {
	environment func() *environment.EnvSet
	// webhooks has no variables; policies has the variable `variables`, which is empty.
	webhooks func() plugincel.Compiler
	policies func() (*plugincel.CompositedCompiler, error)
}

func newExpressions(minCompatibility *utilversion.Version) *expressions {
	env := sync.OnceValue(func() *environment.EnvSet { return environment.MustBaseEnvSet(minCompatibility) })
	return &expressions{
		environment: env,
		webhooks:    sync.OnceValue(func() plugincel.Compiler { return plugincel.NewCompiler(env()) }),
		policies:    sync.OnceValues(func() (*plugincel.CompositedCompiler, error) { return plugincel.NewCompositedCompiler(env()) }),
	}
}

// checkPolicy says which expressions of a policy do not compile. old are those of the
// stored policy, none for a new one. Variables come before the expressions that name them.
func (x *expressions) checkPolicy(now, old []expression) field.ErrorList {
	if slices.EqualFunc(now, old, expression.same) {
		return nil
	}
	compiler, err := x.policies()
	if slices.ContainsFunc(now, isVariable) {
		// The compiler learns the variables, so it is this policy's alone.
		compiler, err = plugincel.NewCompositedCompiler(x.environment())
	}
	if err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	return check(now, old, func(e expression, env environment.Type) *apiservercel.Error {
		if variable, ok := e.ExpressionAccessor.(plugincel.NamedExpressionAccessor); ok {
			return compiler.CompileAndStoreVariable(variable, e.declared, env).Error
		}
		return compiler.CompileCELExpression(e, e.declared, env).Error
	})
}

func isVariable(e expression) bool {
	_, named := e.ExpressionAccessor.(plugincel.NamedExpressionAccessor)
	return named
}

// checkWebhooks says which match conditions of webhooks do not compile.
func (x *expressions) checkWebhooks(now, old []expression) field.ErrorList {
	if slices.EqualFunc(now, old, expression.same) {
		return nil
	}
	return check(now, old, func(e expression, env environment.Type) *apiservercel.Error {
		return x.webhooks().CompileCELExpression(e, e.declared, env).Error
	})
}

// check compiles expressions: those that were there before with all that the binary knows.
func check(now, old []expression, compile func(expression, environment.Type) *apiservercel.Error) field.ErrorList {
	stored := map[use]bool{}
	for _, e := range old {
		stored[e.use()] = true
	}
	var errs field.ErrorList
	for _, e := range now {
		if blank(e.GetExpression()) {
			continue // an optional field, or refused for that
		}
		env := environment.NewExpressions
		if stored[e.use()] {
			env = environment.StoredExpressions
		}
		switch err := compile(e, env); {
		case err == nil:
		case err.Type == apiservercel.ErrorTypeInternal:
			errs = append(errs, field.InternalError(e.field, err))
		default:
			errs = append(errs, field.Invalid(e.field, e.GetExpression(), err.Detail))
		}
	}
	return errs
}

// matchExpressions are the expressions of match conditions.
func matchExpressions(conditions []admissionv1.MatchCondition, declared plugincel.OptionalVariableDeclarations, p *field.Path) []expression {
	var list []expression
	for i, condition := range conditions {
		accessor := &matchconditions.MatchCondition{Expression: condition.Expression}
		list = append(list, expression{accessor, p.Index(i).Child("expression"), declared})
	}
	return list
}

func requireExpression(text string, p *field.Path) field.ErrorList {
	if blank(text) {
		return field.ErrorList{field.Required(p, "")}
	}
	return nil
}

func blank(text string) bool { return strings.TrimSpace(text) == "" }
