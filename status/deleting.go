package status

import (
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/concord-dev/concord/status/cause"
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
	terminating := apihelpers.FindCRDCondition(r.crd, apiextensionsv1.Terminating)
	if terminating == nil {
		return p
	}
	p.Text += ": " + terminating.Message
	switch why, _ := cause.Unreached(terminating.Message); {
	case terminating.Status != apiextensionsv1.ConditionTrue && len(r.crd.Finalizers) > 0: // all objects are deleted
		p.Do = "see that the controllers run that remove its finalizers: " + strings.Join(r.crd.Finalizers, ", ")
	case terminating.Reason == "InstanceDeletionCheck":
		p.Do = "see which objects have finalizers, and that the controllers that remove these run; the deletion goes on by itself"
	case terminating.Reason == "InstanceDeletionFailed" && why != "" && converts(r.crd):
		p.Do = "see that " + converter(r.crd) + " answers, by which the objects are read; the deletion goes on by itself"
	}
	return p
}

// isDeleted says whether the resource's definition is being deleted.
func (r *resource) isDeleted() bool { return r.crd != nil && r.crd.DeletionTimestamp != nil }
