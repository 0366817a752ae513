// Command hello stands for concord in a test of how its image is built: it is built in seconds.
package main

// version is set by the linker.
var version string

func main() { println("hello", version) }
