package status

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// deleting is that the definition is being deleted, and all objects with it: no other problem of the resource matters
// then.
func (x *index) deleting(r *resource) Problem {
	if !r.isDeleted() {
		return Problem{}
	}
	p := Problem{
		Kind: Deleting, Resources: []string{r.String()},
		Text: fmt.Sprintf("%s: its CustomResourceDefinition is being deleted, for %s so far, and all objects with it", r, duration.HumanDuration(x.Now.Sub(r.crd.DeletionTimestamp.Time))),
	}
	if terminating := apihelpers.FindCRDCondition(r.crd, apiextensionsv1.Terminating); terminating != nil {
		p.Text += ": " + terminating.Message
		p.Do = "wait; if it lasts, see that its conversion webhook answers, if it has one, and that the controllers run that remove finalizers, of its objects and of the definition itself"
	}
	return p
}

// isDeleted says whether the resource's definition is being deleted.
func (r *resource) isDeleted() bool { return r.crd != nil && r.crd.DeletionTimestamp != nil }
