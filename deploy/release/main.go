// Command release makes the files that a release holds besides programs and images:
//
//	go run ./release chart --version 0.1.0 --out ../bin/release
//	go run ./release provenance --checksums checksums.txt --commit HASH --version 0.1.0 --out provenance.json
//
// and looks a whole one through:
//
//	go run ./release check --platforms linux/amd64 ../bin/dist ../bin/release
//
// "make release" at the root calls all three.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("chart, provenance or check?")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	var version, commit, out string
	flags.StringVar(&version, "version", "", "the release, e.g. 0.1.0")
	flags.StringVar(&commit, "commit", "", "the commit that was built")
	flags.StringVar(&out, "out", "", "of chart, the folder that the archive comes into; of provenance, the file")
	switch args[0] {
	case "chart":
		folder := flags.String("chart", "chart", "the chart's folder")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		name, err := pack(*folder, version, commit, out)
		if err == nil {
			fmt.Println(name)
		}
		return err
	case "provenance":
		checksums := flags.String("checksums", "", "the file that names what was built, as sha256sum prints it")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return writeProvenance(*checksums, version, commit, out)
	case "check":
		platforms := flags.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "what it is built for")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		r := release{folders: flags.Args(), platforms: strings.Split(*platforms, ",")}
		if err := r.check(); err != nil {
			return err
		}
		fmt.Printf("release %s of %s: %d files\n", r.Version, r.Commit, len(r.sums))
		return nil
	}
	return fmt.Errorf("there is no %q: chart, provenance or check", args[0])
}
