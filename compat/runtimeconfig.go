package compat

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

type maturity string

const (
	unknown maturity = ""
	alpha   maturity = "alpha"
	beta    maturity = "beta"
	stable  maturity = "stable"
)

var kubeVersion = regexp.MustCompile(`^v[1-9][0-9]*(?:(alpha|beta)[1-9][0-9]*)?$`)

func maturityOf(version string) maturity {
	switch m := kubeVersion.FindStringSubmatch(version); {
	case m == nil:
		return unknown
	case m[1] == "":
		return stable
	default:
		return maturity(m[1])
	}
}

// The keys of --runtime-config that stand for all versions of one maturity, and for all of them.
const everything = "api/all"

var class = map[maturity]string{stable: "api/ga", beta: "api/beta", alpha: "api/alpha"}

// runtimeConfig holds the operator's settings, by API: "<group>/<version>[/<resource>]" or a class.
type runtimeConfig map[string]bool

func parseRuntimeConfig(values map[string]string, rows []Lifecycle) (runtimeConfig, error) {
	apis, resources := sets.New(everything, class[stable], class[beta], class[alpha]), sets.New[string]()
	for _, l := range rows {
		apis.Insert(l.GroupVersion().String())
		resources.Insert(name(l))
	}
	config := runtimeConfig{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value, api := values[key], strings.TrimPrefix(key, "/") // "/v1" is the core group
		if !apis.Has(api) && !resources.Has(api) {
			return nil, fmt.Errorf("invalid key %q for flag --runtime-config: no such API, allowed are %s",
				key, strings.Join(closest(api, apis, resources), ", "))
		}
		enabled, err := strconv.ParseBool(value)
		if err != nil && value != "" {
			return nil, fmt.Errorf("invalid value %q for flag --runtime-config %s: allowed are true and false", value, key)
		}
		config[api] = enabled || value == ""
	}
	if enabled, ok := config[everything]; ok && !enabled && len(config) == 1 {
		return nil, fmt.Errorf("invalid value for flag --runtime-config: %s=false alone leaves nothing to serve, enable something beside it", everything)
	}
	return config, nil
}

// closest returns the keys that the author of an unknown one can have meant: the resources of its version if there are any,
// else the versions of its group, else all versions and classes.
func closest(api string, apis, resources sets.Set[string]) []string {
	for i := strings.LastIndex(api, "/"); i > 0; i = strings.LastIndex(api[:i], "/") {
		for _, known := range []sets.Set[string]{resources, apis} {
			siblings := slices.DeleteFunc(sets.List(known), func(k string) bool { return k[:strings.LastIndex(k, "/")+1] != api[:i+1] })
			if len(siblings) > 0 {
				return siblings
			}
		}
	}
	return sets.List(apis)
}

// preference is whether one version of a resource is wanted, and the key that said so.
type preference struct {
	enabled bool
	key     string // of --runtime-config; "": the default
	named   bool   // the key names this version, not a class
}

// preference follows kube-apiserver: a resource's key, its version's key, its class, "api/all", the default.
// Classes leave the versions that Concord itself needs alone.
func (c runtimeConfig) preference(l Lifecycle, o Options) preference {
	gv := l.GroupVersion()
	for _, key := range []string{name(l), gv.String()} {
		if enabled, ok := c[key]; ok {
			return preference{enabled: enabled, key: key, named: true}
		}
	}
	if own.Has(gv) {
		return preference{enabled: true}
	}
	m := maturityOf(l.Version)
	for _, key := range []string{class[m], everything} {
		if enabled, ok := c[key]; ok {
			return preference{enabled: enabled, key: key}
		}
	}
	return preference{enabled: m == stable || m == beta && o.BetaOnByDefault.Has(gv)}
}

func (p preference) String() string {
	return fmt.Sprintf("--runtime-config=%s=%t", p.key, p.enabled)
}
