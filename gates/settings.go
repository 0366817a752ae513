package gates

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/compat"
)

// Settings are the values of feature gates by component and name.
type Settings map[string]map[string]bool

// Split says which component each value of --feature-gates is for: "Name=true", or "concord:Name=true", or several with commas between. AllAlpha
// and AllBeta without a component are for all components. Some of kube's gates are never on, upstream's StorageVersionAPI among them:
// not by AllAlpha, and asking for one is ErrRefused. Errors name the value and what is allowed.
func Split(values []string, known Known) (Settings, error) {
	settings := Settings{Concord: {}, Kube: {}}
	for value := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		if err := settings.add(value, known); err != nil {
			return nil, err
		}
	}
	for name := range refused {
		if known.has(Kube, string(name)) {
			settings[Kube][string(name)] = false
		}
	}
	return settings, nil
}

func (s Settings) add(value string, known Known) error {
	component, pair, named := strings.Cut(value, ":")
	if !named {
		pair = value
	} else if s[component] == nil {
		return fmt.Errorf("%s: no component %s, allowed are %s", value, component, strings.Join(Components, " and "))
	}
	name, state, _ := strings.Cut(pair, "=")
	on, err := strconv.ParseBool(state)
	if err != nil {
		return fmt.Errorf("%s: allowed are %s=true and %s=false", value, name, name)
	}
	if !named && (name == compat.AllAlpha || name == compat.AllBeta) {
		for _, component := range Components {
			s[component][name] = on
		}
		return nil
	}
	if !named {
		component = known.owner(name)
	}
	if _, no := refused[featuregate.Feature(name)]; no && on && component == Kube {
		return fmt.Errorf("%s: %w", value, refusal(featuregate.Feature(name)))
	}
	s[component][name] = on
	return nil
}

// String is a value of --feature-gates that sets the same, with every component named, as the library's flag understands it.
func (s Settings) String() string {
	var pairs []string
	for component, gates := range s {
		for name, on := range gates {
			pairs = append(pairs, fmt.Sprintf("%s:%s=%t", component, name, on))
		}
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// with returns s with the settings of later on top.
func (s Settings) with(later Settings) Settings {
	both := Settings{}
	for _, component := range Components {
		both[component] = maps.Clone(s[component])
		if both[component] == nil {
			both[component] = map[string]bool{}
		}
		maps.Copy(both[component], later[component])
	}
	return both
}
