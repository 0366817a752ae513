package corpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	svmv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/process"
)

const mergePatch = "application/merge-patch+json"

// Flip changes the storage version in the CRD of the custom resources.
func Flip(ctx context.Context, c *stage.Client, plural, storage string) error {
	patch := Marshal(Fields{"spec": Fields{"versions": Definition(plural, storage).Spec.Versions}})
	return Eventually(ctx, "the storage version of "+plural+" is changed", func(ctx context.Context) error {
		_, err := c.Do(ctx, http.MethodPatch, CRDPath+"/"+plural+"."+CustomGroup, mergePatch, patch)
		return err
	})
}

// Flipped is a change of a CRD's storage version, with the migration after it.
type Flipped struct {
	Span
	// Changed is when the client asked for the change of the CRD.
	Changed time.Time
}

// FlipAndMigrate changes the storage version and waits for the end of the migration that the
// servers then start by themselves.
func (s *Stored) FlipAndMigrate(ctx context.Context, storage string) (Flipped, error) {
	ctx, cancel := context.WithTimeout(ctx, migrationLimit)
	defer cancel()
	var done Flipped
	var err error
	done.Span, err = s.follow(ctx, migrationsPrefix, func() error {
		done.Changed = time.Now()
		return Flip(ctx, s.Servers.Clients[0], s.Corpus.gr.Resource, storage)
	})
	return done, err
}

// stockMigrationsPath is the URL path of Kubernetes' own StorageVersionMigrations.
const stockMigrationsPath = "/apis/storagemigration.k8s.io/v1/storageversionmigrations"

// FlipAndMigrateStock changes the storage version and has Kubernetes' own migrator migrate the
// objects, as users of kube-apiserver have to.
func (s *Stored) FlipAndMigrateStock(ctx context.Context, name, storage string) (Flipped, error) {
	ctx, cancel := context.WithTimeout(ctx, migrationLimit)
	defer cancel()
	client := s.Servers.Clients[0]
	done := Flipped{Span: Span{objects: len(s.puts)}, Changed: time.Now()}
	if err := Flip(ctx, client, s.Corpus.gr.Resource, storage); err != nil {
		return Flipped{}, err
	}
	body := Marshal(Fields{
		"apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration", "metadata": Fields{"name": name},
		"spec": Fields{"resource": Fields{"group": s.Corpus.gr.Group, "resource": s.Corpus.gr.Resource}},
	})
	if _, err := client.Do(ctx, http.MethodPost, stockMigrationsPath, JSONType, body); err != nil {
		return Flipped{}, err
	}
	err := process.Until(ctx, CalmPoll, func(ctx context.Context) error {
		raw, err := client.Do(ctx, http.MethodGet, stockMigrationsPath+"/"+name, "", nil)
		if err != nil {
			return err
		}
		var m svmv1.StorageVersionMigration
		if err := json.Unmarshal(raw, &m); err != nil {
			return err
		}
		for _, c := range m.Status.Conditions {
			switch {
			case c.Status != metav1.ConditionTrue:
			case c.Type == string(svmv1.MigrationFailed):
				cancel()
				return fmt.Errorf("it failed: %s", c.Message)
			case c.Type == string(svmv1.MigrationRunning) && done.began.IsZero():
				done.began = time.Now()
			case c.Type == string(svmv1.MigrationSucceeded):
				done.end, done.seen = time.Now(), time.Now()
			}
		}
		if done.end.IsZero() {
			return errors.New("it has not succeeded")
		}
		if done.began.IsZero() {
			done.began = done.Changed
		}
		return nil
	})
	if err != nil {
		return Flipped{}, fmt.Errorf("migration %s by kube-controller-manager: %w", name, err)
	}
	return done, nil
}
