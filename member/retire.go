package member

import (
	"context"
	"fmt"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// replace deletes a StorageVersion that was made for another CRD than the one to be
// reported. The servers that report there have not looked at this CRD, and a write of theirs
// that is under way must not become an object of it.
//
// The CRD is read after the StorageVersion, and a uid is recorded only of a CRD that was
// there before. So the StorageVersion that is deleted was made for an earlier CRD than the one
// read, and servers that do this at the same time cannot go on deleting each other's: a later one
// stays, and a server that still knows an earlier CRD learns of the later one by this read.
func (m *Member) replace(ctx context.Context, c claim, sv *v1alpha1.StorageVersion) error {
	d, err := m.readCRD(ctx, c.target.resource.CRD)
	if err != nil {
		return err
	}
	m.look(c, d)
	if d == nil || d.uid != c.target.uid {
		return errStale
	}
	return m.deleteStorageVersion(ctx, c, sv)
}

// retire takes the report of a resource back whose CRD is gone or has lost its
// name. The CRD's objects went before it did, and with it go all reports: a
// server that has not heard of it must not write when the CRD is made again.
func (m *Member) retire(ctx context.Context, c claim) error {
	sv, err := m.readStorageVersion(ctx, c.gr)
	if err != nil {
		return err
	}
	if sv != nil {
		if c.gone {
			err = m.retireAll(ctx, c, sv)
		} else {
			err = m.retireOwn(ctx, c, sv)
		}
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[c.gr]
	s.close()
	s.done = max(s.done, c.seq)
	return nil
}

func (m *Member) retireAll(ctx context.Context, c claim, sv *v1alpha1.StorageVersion) error {
	if uid := storageversion.MadeFor(sv); uid == "" || uid != c.target.uid {
		// It may have been made for a CRD that is newer than the read.
		d, err := m.readCRD(ctx, c.target.resource.CRD)
		if err != nil {
			return err
		}
		if d != nil {
			m.look(c, d)
			return errStale
		}
	}
	return m.deleteStorageVersion(ctx, c, sv)
}

func (m *Member) retireOwn(ctx context.Context, c claim, sv *v1alpha1.StorageVersion) error {
	before := storageversion.Reports(sv)
	if _, reported := agree.Of(before, c.id); !reported {
		return nil
	}
	if err := m.sending(c, ""); err != nil {
		return err
	}
	storageversion.SetReports(sv, agree.Without(before, c.id), metav1.NewTime(m.cfg.Clock.Now()))
	if err := m.cfg.Client.Status().Update(ctx, sv); err != nil {
		return fmt.Errorf("drop the report from StorageVersion %s: %w", sv.Name, err)
	}
	return nil
}

// deleteStorageVersion withdraws the permissions of all servers that report there. They report
// again if they have something to report.
func (m *Member) deleteStorageVersion(ctx context.Context, c claim, sv *v1alpha1.StorageVersion) error {
	if err := m.sending(c, ""); err != nil {
		return err
	}
	uid, resourceVersion := sv.UID, sv.ResourceVersion
	err := m.cfg.Client.Delete(ctx, sv, client.Preconditions{UID: &uid, ResourceVersion: &resourceVersion})
	switch {
	case err == nil || storageversion.IsGone(err):
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("StorageVersion %s was changed by somebody else, it will be read again: %w", sv.Name, err)
	default:
		return fmt.Errorf("delete StorageVersion %s: %w", sv.Name, err)
	}
}
