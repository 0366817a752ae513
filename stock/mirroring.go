package stock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/controller/mirror"
	"github.com/concord-dev/concord/stock/observed"
)

// MirrorMode says when migrations of storagemigration.k8s.io are done here.
type MirrorMode string

// The MirrorModes.
const (
	// MirrorAuto does them where kube-controller-manager's own migrator is seen to be off.
	MirrorAuto MirrorMode = "auto"
	// MirrorAlways does them; no other program may.
	MirrorAlways MirrorMode = "always"
	// MirrorNever leaves them alone.
	MirrorNever MirrorMode = "never"
)

// MirrorModes are all of them.
var MirrorModes = []MirrorMode{MirrorAuto, MirrorAlways, MirrorNever}

func (m MirrorMode) valid() bool { return slices.Contains(MirrorModes, m) }

// errNotServed says that kube-apiservers do not serve storagemigration.k8s.io.
var errNotServed = errors.New("kube-apiservers do not serve " + storagemigrationv1.GroupName)

// errAlpha says that they serve it in a version whose migrations are left to kube-controller-manager.
var errAlpha = errors.New("kube-apiservers serve " + storagemigrationv1.GroupName + " in " + observed.AlphaMigrations + " only")

// mirroring does the migrations of storagemigration.k8s.io that no other program does.
type mirroring struct {
	*controllers
	// served is the version in which they are served, and known a client that knows it.
	served schema.GroupVersion
	known  client.WithWatch
	last   string
}

// mirror does migrations of storagemigration.k8s.io until ctx ends. It waits for kube-apiservers to
// serve them.
func (c *controllers) mirror(ctx context.Context) {
	m := &mirroring{controllers: c}
	for err := m.connect(); err != nil; err = m.connect() {
		what := "It is not known who does migrations of storagemigration.k8s.io"
		if errors.Is(err, errAlpha) {
			what = "Migrations of storagemigration.k8s.io are left alone"
		}
		m.tell(what, err.Error())
		select {
		case <-c.config.Clock.After(c.config.Poll):
		case <-ctx.Done():
			return
		}
	}
	mirror.New(mirror.Config{
		Client: m.known, Served: m.served, Clock: m.config.Clock, Logger: m.config.Logger.WithName("mirror"), May: m.may,
	}).Run(ctx)
}

// connect finds the version that kube-apiservers prefer.
func (m *mirroring) connect() error {
	groups, err := m.kube.Discovery().ServerGroups()
	if err != nil {
		return fmt.Errorf("ask for groups: %w", err)
	}
	for _, g := range groups.Groups {
		if g.Name != storagemigrationv1.GroupName {
			continue
		}
		if g.PreferredVersion.Version == observed.AlphaMigrations {
			return errAlpha
		}
		m.served = schema.GroupVersion{Group: g.Name, Version: g.PreferredVersion.Version}
		m.known, err = connect.NewClientWith(m.config.Rest, m.served)
		return err
	}
	return errNotServed
}

// may returns nil if a new migration should be done here, and an error if not, or if that is not known. In the mode
// auto it looks at kube-controller-manager's Lease and at the migrations.
func (m *mirroring) may(ctx context.Context) error {
	judged := observed.InTree{Off: true, Why: "--mirror is " + string(MirrorAlways)}
	if m.config.Mirror == MirrorAuto {
		var err error
		if judged, err = m.judge(ctx); err != nil {
			m.tell("It is not known who does migrations of storagemigration.k8s.io", err.Error())
			return err
		}
	}
	if !judged.Off {
		m.tell("New migrations of storagemigration.k8s.io are left to kube-controller-manager", judged.Why)
		return fmt.Errorf("%w: %s", mirror.ErrLeft, judged.Why)
	}
	m.tell("New migrations of storagemigration.k8s.io are done here", judged.Why)
	return nil
}

func (m *mirroring) judge(ctx context.Context) (observed.InTree, error) {
	lease := &coordinationv1.Lease{}
	if err := m.objects.Get(ctx, client.ObjectKey{Namespace: observed.ManagerNamespace, Name: observed.ManagerLease}, lease); storageversion.IsGone(err) {
		lease = nil
	} else if err != nil {
		return observed.InTree{}, fmt.Errorf("get kube-controller-manager's Lease: %w", err)
	}
	list := &storagemigrationv1.StorageVersionMigrationList{}
	if err := m.known.List(ctx, list); err != nil {
		return observed.InTree{}, fmt.Errorf("list migrations of %s: %w", m.served, err)
	}
	judged := observed.JudgeInTree(m.config.Clock.Now(), lease, list.Items, m.config.MirrorAfter)
	if !judged.Since.IsZero() {
		judged.Why += "; the migrator counts as off from " + judged.Since.Add(m.config.MirrorAfter).UTC().Format(time.RFC3339) + " on"
	}
	return judged, nil
}

// tell logs a message unless it was the last one.
func (m *mirroring) tell(what, why string) {
	if now := what + why; now != m.last {
		m.last = now
		m.config.Logger.Info(what, "reason", why)
	}
}
