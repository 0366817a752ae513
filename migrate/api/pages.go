package api

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lister lists at most so many objects, from where a token says.
type Lister func(limit int, from string) (*metav1.PartialObjectMetadataList, error)

// Pages lists all objects, page by page, and gives each page to take: so many at most, and fewer where they
// are large. Where a token has become too old it goes on with the one that the server gives for the same place,
// as it is now; without one it begins again, after a call of anew. Objects that it shows from a later time were
// written since the list began.
func Pages(ctx context.Context, most int, list Lister, anew func(), take func([]metav1.PartialObjectMetadata) error) error {
	from, size := "", min(FirstPage, most)
	for begun, moved := 1, 0; ; {
		page, err := list(size, from)
		goOn, tooOld := expired(err)
		switch {
		case tooOld && goOn != "" && goOn != from && moved < beginnings:
			from = goOn
			moved++
			continue
		case tooOld && from != "" && begun < beginnings:
			from = ""
			begun, moved = begun+1, 0
			anew()
			continue
		case err != nil:
			return fmt.Errorf("list the objects: %w", err)
		}
		if err := take(page.Items); err != nil {
			return err
		}
		size = nextPage(page, most)
		if from, moved = page.Continue, 0; from == "" {
			return nil
		}
	}
}
