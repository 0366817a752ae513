package registry

import (
	"context"
	"fmt"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// table prints StorageVersions.
type table struct{}

var (
	_ rest.TableConvertor = table{}

	columns = []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
		{Name: "Encoding", Type: "string", Description: "The encodings that servers report; one means agreement."},
		{Name: "Agreed", Type: "string", Description: "Whether all servers report the same encoding."},
		{Name: "Servers", Type: "integer", Description: "The number of servers that report."},
		{Name: "Epoch", Type: "integer", Description: "Raised whenever the set of reported encodings changes."},
		{Name: "Age", Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
	}
)

// ConvertToTable implements rest.TableConvertor.
func (table) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{}
	if list, err := meta.ListAccessor(obj); err == nil {
		out.ResourceVersion, out.Continue, out.RemainingItemCount = list.GetResourceVersion(), list.GetContinue(), list.GetRemainingItemCount()
	} else if one, err := meta.CommonAccessor(obj); err == nil {
		out.ResourceVersion = one.GetResourceVersion()
	}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		out.ColumnDefinitions = columns
	}
	var err error
	out.Rows, err = metatable.MetaToTableRow(obj, row)
	return out, err
}

func row(obj runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
	sv, ok := obj.(*v1alpha1.StorageVersion)
	if !ok {
		return nil, fmt.Errorf("cannot print %T", obj)
	}
	encodings := agree.Join(agree.Encodings(storageversion.Reports(sv)))
	if encodings == "" {
		encodings = "<none>"
	}
	agreed := string(v1alpha1.ConditionUnknown)
	for _, c := range sv.Status.Conditions {
		if c.Type == v1alpha1.AllEncodingVersionsEqual {
			agreed = string(c.Status)
		}
	}
	var epoch any = "<invalid>"
	if history, err := storageversion.History(sv); err == nil {
		epoch = history.Epoch
	}
	return []any{name, encodings, agreed, int64(len(sv.Status.StorageVersions)), epoch, age}, nil
}
