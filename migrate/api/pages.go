package api

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lister lists at most limit objects, from where a token says.
type Lister func(limit int, from string) (*metav1.PartialObjectMetadataList, error)

// Pages lists all objects, page by page, and passes each page to take. A page has at most most objects, and fewer if
// they are large. If a continue token has expired, the list continues with the token that the server offers for the
// same place at a newer resourceVersion; without such a token it begins again, after a call of anew. Objects with a
// later resourceVersion were written since the list began.
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
