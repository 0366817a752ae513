package stock

import (
	"context"
	"errors"
	"fmt"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/controller/mirror"
)

// errNotServed says that kube-apiservers do not serve storagemigration.k8s.io.
var errNotServed = errors.New("kube-apiservers do not serve " + storagemigrationv1.GroupName)

// newMirror makes the controller of storagemigration.k8s.io, in the version that
// kube-apiservers prefer.
func (c *controllers) newMirror() (*mirror.Controller, error) {
	groups, err := c.kube.Discovery().ServerGroups()
	if err != nil {
		return nil, fmt.Errorf("ask for groups: %w", err)
	}
	for _, g := range groups.Groups {
		if g.Name != storagemigrationv1.GroupName {
			continue
		}
		served := schema.GroupVersion{Group: g.Name, Version: g.PreferredVersion.Version}
		known, err := connect.NewClientWith(c.config.Rest, served)
		if err != nil {
			return nil, err
		}
		return mirror.New(mirror.Config{Client: known, Served: served, Clock: c.config.Clock, Logger: c.config.Logger.WithName("mirror")})
	}
	return nil, errNotServed
}

// mirror does migrations of storagemigration.k8s.io until ctx ends.
func (c *controllers) mirror(ctx context.Context) {
	var mirrored *mirror.Controller
	err := wait.PollUntilContextCancel(ctx, retry, true, func(context.Context) (bool, error) {
		var err error
		if mirrored, err = c.newMirror(); err != nil && !errors.Is(err, errNotServed) {
			c.config.Logger.V(1).Info("Whether storagemigration.k8s.io is served is not known yet", "reason", err.Error())
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		c.config.Logger.Info("Migrations of storagemigration.k8s.io are not done", "reason", err.Error())
		return
	}
	mirrored.Run(ctx)
}
