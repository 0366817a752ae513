// Package storageversion maps the wire form of KEP-2339's StorageVersion
// (internal.apiserver.k8s.io/v1alpha1) to the values that package agree decides on, and
// names the labels and annotations that servers write on their identity Leases.
package storageversion

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

const (
	// EpochAnnotation holds a StorageVersion's epoch, a decimal number.
	EpochAnnotation = "concord.dev/epoch"
	// EncodingsAnnotation holds the last epoch at which each encoding was reported, a
	// JSON object. Both are computed by the strategy; values that a client sends are ignored.
	EncodingsAnnotation = "concord.dev/encoding-epochs"
	// ForgottenAnnotation holds the newest epoch of the encodings that the history does not
	// name any more, a decimal number, if there are any. It is computed as the others are.
	ForgottenAnnotation = "concord.dev/forgotten-epoch"
	// SealsAnnotation names the key that each server encrypts the resource with, a JSON object of
	// agree.Seals by server. It belongs to the reports, beside encodingVersion, which has no
	// room for it, and is written with them: by updates of the status.
	SealsAnnotation = "concord.dev/seals"
	// CRDAnnotation holds the uid of the CustomResourceDefinition for which a StorageVersion was created. It never
	// changes: for another CustomResourceDefinition of that name the StorageVersion is deleted and created again, so
	// that no report about the earlier one permits a write.
	CRDAnnotation = "concord.dev/crd-uid"
	// DefinitionAnnotation holds evolve.StorageVersion.Definition where servers do not report.
	DefinitionAnnotation = "concord.dev/definition"

	coreGroup = "core"
)

// Resource is the StorageVersions' own resource.
var Resource = schema.GroupResource{Group: v1alpha1.GroupName, Resource: "storageversions"}

// Name returns the name of the resource's StorageVersion: "<group>.<resource>", with
// "core" for the core group.
func Name(gr schema.GroupResource) string {
	group := gr.Group
	if group == "" {
		group = coreGroup
	}
	return group + "." + gr.Resource
}

// GroupResource returns the resource that a StorageVersion of this name is about.
func GroupResource(name string) (schema.GroupResource, error) {
	i := strings.LastIndex(name, ".")
	if i <= 0 || i == len(name)-1 {
		return schema.GroupResource{}, fmt.Errorf("StorageVersion name %q is not <group>.<resource>", name)
	}
	group := name[:i]
	if group == coreGroup {
		group = ""
	}
	return schema.GroupResource{Group: group, Resource: name[i+1:]}, nil
}

// Reports returns the servers' reports.
func Reports(sv *v1alpha1.StorageVersion) []agree.Report {
	seals := sealsOf(sv)
	reports := make([]agree.Report, 0, len(sv.Status.StorageVersions))
	for _, ssv := range sv.Status.StorageVersions {
		reports = append(reports, agree.Report{
			Server:    agree.ServerID(ssv.APIServerID),
			Encoding:  agree.Encoding(ssv.EncodingVersion).Sealed(seals(agree.ServerID(ssv.APIServerID))),
			Decodable: ssv.DecodableVersions,
			Served:    ssv.ServedVersions,
		})
	}
	return reports
}

// unreadableSeal stands for a Seal that cannot be read from the annotation.
const unreadableSeal agree.Seal = "unreadable:"

// sealsOf returns a function that returns each server's Seal. If the annotation cannot be read, no server counts as one
// that does not encrypt.
func sealsOf(sv *v1alpha1.StorageVersion) func(agree.ServerID) agree.Seal {
	value, ok := sv.Annotations[SealsAnnotation]
	if !ok {
		return func(agree.ServerID) agree.Seal { return "" }
	}
	var seals map[agree.ServerID]agree.Seal
	if err := json.Unmarshal([]byte(value), &seals); err != nil {
		return func(agree.ServerID) agree.Seal { return unreadableSeal }
	}
	return func(id agree.ServerID) agree.Seal { return seals[id] }
}

func setSeals(sv *v1alpha1.StorageVersion, reports []agree.Report) {
	seals := map[agree.ServerID]agree.Seal{}
	for _, r := range reports {
		if seal := r.Encoding.Seal(); seal != "" {
			seals[r.Server] = seal
		}
	}
	if len(seals) == 0 {
		delete(sv.Annotations, SealsAnnotation)
		return
	}
	value, err := json.Marshal(seals)
	if err != nil {
		// A map of strings always marshals.
		panic(err)
	}
	metav1.SetMetaDataAnnotation(&sv.ObjectMeta, SealsAnnotation, string(value))
}

// SetReports puts the reports in, and with them commonEncodingVersion and the
// AllEncodingVersionsEqual condition (KEP-2339, "Updating StorageVersion"). The
// condition's transition time is now when its status or the common encoding changes.
// Servers that encrypt with different keys have no common encoding.
func SetReports(sv *v1alpha1.StorageVersion, reports []agree.Report, now metav1.Time) {
	before, hadCommon := Agreement(sv)
	sv.Status.StorageVersions = nil
	setSeals(sv, reports)
	for _, r := range reports {
		sv.Status.StorageVersions = append(sv.Status.StorageVersions, v1alpha1.ServerStorageVersion{
			APIServerID:       string(r.Server),
			EncodingVersion:   string(r.Encoding.Plain()),
			DecodableVersions: r.Decodable,
			ServedVersions:    r.Served,
		})
	}
	common, agreed := agree.Common(reports)
	sv.Status.CommonEncodingVersion = nil
	condition := v1alpha1.StorageVersionCondition{
		Type:               v1alpha1.AllEncodingVersionsEqual,
		Status:             v1alpha1.ConditionFalse,
		ObservedGeneration: sv.Generation,
		LastTransitionTime: now,
		Reason:             "CommonEncodingVersionUnset",
		Message:            "servers report different encodings: " + agree.Join(agree.Encodings(reports)),
	}
	if why := silentServers(reports); why != "" {
		condition.Message = why
	}
	if len(reports) == 0 {
		condition.Message = "no server reports this resource"
	}
	if agreed {
		value := string(common.Plain())
		sv.Status.CommonEncodingVersion = &value
		condition.Status = v1alpha1.ConditionTrue
		condition.Reason = "CommonEncodingVersionSet"
		condition.Message = "all servers encode " + value
		if seal := common.Seal(); seal != "" {
			condition.Message += ", encrypted with " + seal.Key()
		}
	}
	setCondition(sv, condition, agreed && hadCommon && common != before)
}

func setCondition(sv *v1alpha1.StorageVersion, condition v1alpha1.StorageVersionCondition, moved bool) {
	for i, old := range sv.Status.Conditions {
		if old.Type != condition.Type {
			continue
		}
		if old.Status == condition.Status && !moved {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		sv.Status.Conditions[i] = condition
		return
	}
	sv.Status.Conditions = append(sv.Status.Conditions, condition)
}

// Agreement returns the encoding on which all reports agree, as the object says. The
// object names its group/version only: the Seal that goes with it is in the reports.
func Agreement(sv *v1alpha1.StorageVersion) (agree.Encoding, bool) {
	return AgreementOn(sv, Reports(sv))
}

// View returns the part of a StorageVersion that decisions need. It returns an error if the history cannot be read.
func View(sv *v1alpha1.StorageVersion) (*evolve.StorageVersion, error) {
	history, err := History(sv)
	if err != nil {
		return nil, err
	}
	reports := Reports(sv)
	common, _ := AgreementOn(sv, reports)
	return &evolve.StorageVersion{
		UID: string(sv.UID), History: history, Reports: reports, Common: common,
		Silent: WaitsFor(sv), Custom: MadeFor(sv) != "", Definition: sv.Annotations[DefinitionAnnotation],
	}, nil
}

// AgreementOn is Agreement for callers that have the object's reports already.
func AgreementOn(sv *v1alpha1.StorageVersion, reports []agree.Report) (agree.Encoding, bool) {
	if sv.Status.CommonEncodingVersion == nil || *sv.Status.CommonEncodingVersion == "" {
		return "", false
	}
	said := agree.Encoding(*sv.Status.CommonEncodingVersion)
	if common, ok := agree.Common(reports); ok && common.Plain() == said {
		return common, true
	}
	return said, true
}

// History reads the epoch annotations. An object without them has the zero history.
func History(sv *v1alpha1.StorageVersion) (agree.History, error) {
	h := agree.History{Last: map[agree.Encoding]int64{}}
	var err error
	if h.Epoch, err = epochIn(sv, EpochAnnotation); err != nil {
		return h, err
	}
	if h.Forgotten, err = epochIn(sv, ForgottenAnnotation); err != nil {
		return h, err
	}
	if value, ok := sv.Annotations[EncodingsAnnotation]; ok {
		if err := json.Unmarshal([]byte(value), &h.Last); err != nil {
			return h, fmt.Errorf("StorageVersion %s, annotation %s: %w: %s", sv.Name, EncodingsAnnotation, err, wayOut(sv))
		}
	}
	if err := h.Validate(); err != nil {
		return h, fmt.Errorf("StorageVersion %s: %w: %s", sv.Name, err, wayOut(sv))
	}
	return h, nil
}

// epochIn reads an epoch from an annotation, 0 if there is none.
func epochIn(sv *v1alpha1.StorageVersion, annotation string) (int64, error) {
	value, ok := sv.Annotations[annotation]
	if !ok {
		return 0, nil
	}
	epoch, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("StorageVersion %s, annotation %s: %w: %s", sv.Name, annotation, err, wayOut(sv))
	}
	return epoch, nil
}

// wayOut is the advice for a StorageVersion that decodes, and is damaged nevertheless.
func wayOut(sv *v1alpha1.StorageVersion) string {
	return fmt.Sprintf("kubectl delete storageversions.%s %s, then the servers report it again by themselves", v1alpha1.GroupName, sv.Name)
}

// SetHistory writes the epoch annotations.
func SetHistory(sv *v1alpha1.StorageVersion, h agree.History) {
	if sv.Annotations == nil {
		sv.Annotations = map[string]string{}
	}
	last := h.Last
	if last == nil {
		last = map[agree.Encoding]int64{}
	}
	encodings, err := json.Marshal(last)
	if err != nil {
		// A map of strings to numbers always marshals.
		panic(err)
	}
	sv.Annotations[EpochAnnotation] = strconv.FormatInt(h.Epoch, 10)
	sv.Annotations[EncodingsAnnotation] = string(encodings)
	delete(sv.Annotations, ForgottenAnnotation)
	if h.Forgotten > 0 {
		sv.Annotations[ForgottenAnnotation] = strconv.FormatInt(h.Forgotten, 10)
	}
}

// MadeFor returns the uid of the CustomResourceDefinition for which a StorageVersion was made; empty
// if it was made for none, or does not say.
func MadeFor(sv *v1alpha1.StorageVersion) types.UID {
	return types.UID(sv.Annotations[CRDAnnotation])
}
