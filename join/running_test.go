package join

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/join/internal/registry"
)

// TestShutdownDelay: a server departs when its shutdown delay is over, and the hooks that take its address away from
// clients, which the servers have that it delegates to, run before, once.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	var ran []string
	hook := func(name string) genericapiserver.PreShutdownHookFunc {
		return func() error { ran = append(ran, name); return nil }
	}
	chain := genericapiserver.NewEmptyDelegate()
	var last *genericapiserver.GenericAPIServer
	for _, name := range []string{"inner", "outer"} {
		config := genericapiserver.NewConfig(serializer.NewCodecFactory(registry.LeaseScheme))
		config.EffectiveVersion = utilcompatibility.DefaultBuildEffectiveVersion()
		config.ExternalAddress, config.LoopbackClientConfig = "127.0.0.1:1", &rest.Config{}
		config.SkipOpenAPIInstallation = true
		var err error
		if last, err = config.Complete(nil).New(name, chain); err != nil {
			t.Fatal(err)
		}
		last.AddPreShutdownHookOrDie(name, hook(name))
		chain = last
	}
	const delay = 50 * time.Millisecond
	began := time.Now()
	last.AddPreShutdownHookOrDie("depart", afterDelay(delay, delegated(last), func() error {
		if took := time.Since(began); took < delay {
			t.Errorf("it departs after %v", took)
		}
		return hook("depart")()
	}))
	if err := last.RunPreShutdownHooks(); err != nil {
		t.Error(err)
	}
	ran = slices.DeleteFunc(ran, func(name string) bool { return name == "outer" })
	if !slices.Equal(ran, []string{"inner", "depart"}) {
		t.Errorf("it ran %v", ran)
	}
}
