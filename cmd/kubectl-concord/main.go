// Command kubectl-concord is the plugin "kubectl concord": the commands with which operators look
// at a cluster whose stored objects Concord moves, and act on it. It holds no server code.
package main

import "github.com/concord-dev/concord/cmd/program"

func main() { program.Main(asTyped, newCommand()) }
