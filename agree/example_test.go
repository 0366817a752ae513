package agree_test

import (
	"fmt"

	"github.com/concord-dev/concord/agree"
)

func report(server agree.ServerID, encoding string) agree.Report {
	return agree.Report{Server: server, Encoding: agree.Encoding(encoding), Decodable: []string{encoding}, Served: []string{encoding}}
}

// Two servers are upgraded one after the other: they agree on v1, then not, and then on v2. A
// write that the first one sent with v1 is judged when its transaction fails.
func Example() {
	servers := agree.NewParticipants([]agree.ServerID{"one", "two"}, nil)
	var reports []agree.Report
	var history agree.History
	for _, own := range []agree.Report{
		report("one", "example.com/v1"), report("two", "example.com/v1"),
		report("one", "example.com/v2"), report("two", "example.com/v2"),
	} {
		reports = agree.Merge(reports, own, servers)
		history = history.Next(reports)
		common, agreed := agree.Common(reports)
		fmt.Printf("epoch %d: %v %q %t\n", history.Epoch, reports, common, agreed)
	}
	fmt.Println("one's write in v1:", agree.Judge(reports, "one", "example.com/v1"))
	fmt.Println("since epoch 1:", history.Since(1))
	// Output:
	// epoch 1: [one:example.com/v1] "example.com/v1" true
	// epoch 1: [one:example.com/v1 two:example.com/v1] "example.com/v1" true
	// epoch 2: [one:example.com/v2 two:example.com/v1] "" false
	// epoch 3: [one:example.com/v2 two:example.com/v2] "example.com/v2" true
	// one's write in v1: superseded
	// since epoch 1: [example.com/v1 example.com/v2]
}
