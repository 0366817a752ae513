package server

import "testing"

// BenchmarkPlan is what planning adds to a start:
//
//	go test ./server -run '^$' -bench 'Plan$'
func BenchmarkPlan(b *testing.B) {
	o := NewOptions()
	o.EmulationVersion = "1.36"
	if err := o.Complete(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := o.Plan(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestUnplannedServesThePlan: what a server without a plan serves and stores by default is
// what the plan of its own release and no older one says, so that starts can be compared.
func TestUnplannedServesThePlan(t *testing.T) {
	o, err := parse(t, "--min-compatibility-version=1.37")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := o.Plan()
	if err != nil {
		t.Fatal(err)
	}
	o.DisablePlan = true
	without, err := o.Plan()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range Lifecycles() {
		if l.Gone {
			continue
		}
		if plan.Served(l.GroupVersionResource) != without.Served(l.GroupVersionResource) {
			t.Errorf("%s is served: %t with the plan, %t without", l.GroupVersionResource, plan.Served(l.GroupVersionResource), without.Served(l.GroupVersionResource))
		}
		if with, _ := plan.Storage(l.GroupResource()); plan.Served(l.GroupVersionResource) {
			if got, _ := without.Storage(l.GroupResource()); got != with {
				t.Errorf("%s is stored in %s with the plan, in %s without", l.GroupResource(), with, got)
			}
		}
	}
}
