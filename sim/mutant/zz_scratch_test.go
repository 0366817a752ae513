package mutant

import "testing"

func TestScratch(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	root, _ := Root(t.Context())
	r := &runner{cfg: Config{Root: root, Package: "cmd/concord-sim"}, dir: "/tmp/mrun"}
	if err := r.build(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}
