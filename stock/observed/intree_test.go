package observed

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The times in the tests are minutes after midnight.
var midnight = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

func minute(n int) time.Time { return midnight.Add(time.Duration(n) * time.Minute) }

func managerLease(acquired, renewed int) *coordinationv1.Lease {
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("node_1"), LeaseDurationSeconds: ptr.To[int32](15),
		AcquireTime: &metav1.MicroTime{Time: minute(acquired)}, RenewTime: &metav1.MicroTime{Time: minute(renewed)},
	}}
}

type orders []storagemigrationv1.StorageVersionMigration

// order adds a migration with these conditions, which kube-controller-manager or these controllers
// have written.
func (o orders) order(created int, conditions ...metav1.Condition) orders {
	m := storagemigrationv1.StorageVersionMigration{}
	m.Name, m.CreationTimestamp, m.Status.Conditions = "widgets", metav1.NewTime(minute(created)), conditions
	return append(o, m)
}

// of gives the last one another resource than the others have.
func (o orders) of(resource string) orders {
	o[len(o)-1].Spec.Resource.Resource = resource
	return o
}

func says(kind storagemigrationv1.MigrationConditionType, status metav1.ConditionStatus, reason string, at int) metav1.Condition {
	return metav1.Condition{Type: string(kind), Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(minute(at))}
}

// TestJudgeInTree judges at minute 100 whether kube-controller-manager's migrator is on.
func TestJudgeInTree(t *testing.T) {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	running := says(storagemigrationv1.MigrationRunning, yes, "MigrationRunning", 90)
	ended := func(at int) []metav1.Condition {
		return []metav1.Condition{says(storagemigrationv1.MigrationRunning, no, "MigrationCompleted", at), says(storagemigrationv1.MigrationSucceeded, yes, "StorageVersionMigrationSucceeded", at)}
	}
	old := orders{}.order(90)
	old[0].Status.ResourceVersion = "17"
	for name, test := range map[string]struct {
		lease *coordinationv1.Lease
		all   orders
		off   bool
		why   string
	}{
		"nothing to see":                                       {managerLease(0, 100), nil, false, "there is none"},
		"a new one":                                            {managerLease(0, 100), orders{}.order(96), false, "widgets has been left alone since 2026-05-01T01:36:00Z"},
		"two new ones":                                         {managerLease(0, 100), orders{}.order(96).order(98), false, "since 2026-05-01T01:36:00Z"},
		"one was left alone":                                   {managerLease(0, 100), orders{}.order(95), true, "kube-controller-manager is node_1, and widgets was left alone for 5m0s"},
		"one was left alone by another process":                {managerLease(96, 100), orders{}.order(20), false, "since 2026-05-01T01:36:00Z"},
		"the Lease has run out":                                {managerLease(0, 99), orders{}.order(20), false, "does not renew its Lease"},
		"nobody has a Lease":                                   {nil, orders{}.order(95), true, "no kube-controller-manager has a Lease, and widgets was left alone"},
		"a Lease that was given back":                          {&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("")}}, orders{}.order(20), true, "no kube-controller-manager"},
		"a Lease that tells nothing":                           {&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("one")}}, orders{}.order(20), false, "does not tell"},
		"one runs, another waits":                              {managerLease(0, 100), orders{}.order(20, running).order(20), false, "has begun widgets"},
		"one was begun in an old release":                      {managerLease(0, 100), old, false, "has begun widgets"},
		"one ended since, another is new":                      {managerLease(0, 100), orders{}.order(20, ended(97)...).order(98), false, "has ended one since, and widgets has been left alone since 2026-05-01T01:38:00Z"},
		"one ended, and since then it was off":                 {managerLease(0, 100), orders{}.order(20, ended(30)...).order(94), true, "has ended one since, and widgets was left alone for 6m0s"},
		"one ended before this process":                        {managerLease(40, 100), orders{}.order(20, ended(30)...).order(60), true, "is node_1, and widgets was left alone for 40m0s"},
		"one that these controllers do, after it":              {managerLease(0, 100), orders{}.order(90, says(storagemigrationv1.MigrationRunning, yes, "Rewriting", 95)), true, "left alone for 5m1s"},
		"one that these controllers did":                       {managerLease(0, 100), orders{}.order(10, says(storagemigrationv1.MigrationSucceeded, yes, "Succeeded", 20)).order(100), true, "left alone for 10m0s"},
		"one that these did under another":                     {managerLease(50, 100), orders{}.order(10, says(storagemigrationv1.MigrationSucceeded, yes, "Succeeded", 20)).order(100), false, "widgets has been left alone since 2026-05-01T01:40:00Z"},
		"one that these took from it":                          {managerLease(50, 100), orders{}.order(40, says(storagemigrationv1.MigrationRunning, no, "Pending", 51)), false, "there is none"},
		"one that these took and do":                           {managerLease(50, 100), orders{}.order(40, says(storagemigrationv1.MigrationRunning, yes, "Rewriting", 60)), false, "there is none"},
		"one that these took and did":                          {managerLease(50, 100), orders{}.order(40, says(storagemigrationv1.MigrationRunning, no, "Succeeded", 60), says(storagemigrationv1.MigrationSucceeded, yes, "Succeeded", 60)), false, "there is none"},
		"begun by a process that is gone":                      {managerLease(95, 100), orders{}.order(20, running).of("gears").order(94), true, "is node_1, and widgets was left alone for 5m0s"},
		"begun before nobody has a Lease":                      {nil, orders{}.order(20, running).of("gears").order(95), true, "no kube-controller-manager has a Lease, and widgets was left alone"},
		"begun by one that is gone, and one that waits for it": {managerLease(95, 100), orders{}.order(20, running).order(94), false, "there is none"},
		"begun by one that is gone, no other":                  {managerLease(95, 100), orders{}.order(20, running), false, "there is none"},
		"begun in the second of the election":                  {managerLease(90, 100), orders{}.order(20, running).order(91), false, "has begun widgets"},
		"switched on while these worked":                       {managerLease(0, 100), orders{}.order(10, says(storagemigrationv1.MigrationRunning, yes, "MigrationRunning", 99)), false, "has begun widgets"},
	} {
		t.Run(name, func(t *testing.T) {
			got := JudgeInTree(minute(100), test.lease, test.all, UntouchedFor)
			if got.Off != test.off || !strings.Contains(got.Why, test.why) {
				t.Errorf("off is %t because %s, want %t and %q", got.Off, got.Why, test.off, test.why)
			}
		})
	}
}
