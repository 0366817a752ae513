package builtin

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
)

// A column is one printer column of objects of type P.
type column[P object] struct {
	name, typ, format, description string
	// wide columns show only with -o wide.
	wide bool
	cell func(obj P, now time.Time) any
}

// A table prints objects of type P.
type table[P object] struct {
	columns []column[P]
	clock   clock.PassiveClock
}

var _ rest.TableConvertor = table[object]{}

// nameColumn is by custom the first one.
func nameColumn[P object]() column[P] {
	return column[P]{
		name: "Name", typ: "string", format: "name", description: metaDoc["name"],
		cell: func(obj P, _ time.Time) any { return obj.GetName() },
	}
}

// ageColumn shows how long ago the object was created.
func ageColumn[P object]() column[P] {
	return column[P]{
		name: "Age", typ: "string", description: metaDoc["creationTimestamp"],
		cell: func(obj P, now time.Time) any { return since(obj.GetCreationTimestamp(), now) },
	}
}

var metaDoc = metav1.ObjectMeta{}.SwaggerDoc()

// since prints the time passed since t, as kubectl does.
func since(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// orNone prints an empty string as "<none>".
func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

// ConvertToTable implements rest.TableConvertor.
func (t table[P]) ConvertToTable(_ context.Context, obj, tableOptions runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{}
	now := t.clock.Now()
	add := func(item runtime.Object) error {
		typed, ok := item.(P)
		if !ok {
			return fmt.Errorf("cannot print %T", item)
		}
		row := metav1.TableRow{Object: runtime.RawExtension{Object: item}}
		for _, c := range t.columns {
			row.Cells = append(row.Cells, c.cell(typed, now))
		}
		out.Rows = append(out.Rows, row)
		return nil
	}
	switch {
	case meta.IsListType(obj):
		if err := meta.EachListItem(obj, add); err != nil {
			return nil, err
		}
	default:
		if err := add(obj); err != nil {
			return nil, err
		}
	}
	if list, err := meta.ListAccessor(obj); err == nil {
		out.ResourceVersion = list.GetResourceVersion()
		out.Continue = list.GetContinue()
		out.RemainingItemCount = list.GetRemainingItemCount()
	} else if one, err := meta.CommonAccessor(obj); err == nil {
		out.ResourceVersion = one.GetResourceVersion()
	}
	if opt, ok := tableOptions.(*metav1.TableOptions); !ok || !opt.NoHeaders {
		out.ColumnDefinitions = t.definitions()
	}
	return out, nil
}

func (t table[P]) definitions() []metav1.TableColumnDefinition {
	var definitions []metav1.TableColumnDefinition
	for _, c := range t.columns {
		definition := metav1.TableColumnDefinition{Name: c.name, Type: c.typ, Format: c.format, Description: c.description}
		if c.wide {
			definition.Priority = 1
		}
		definitions = append(definitions, definition)
	}
	return definitions
}
