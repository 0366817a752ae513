// Package version has the functions that histories call.
package version

type Version struct{}

func MustParse(string) *Version             { return nil }
func MustParseMajorMinor(string) *Version   { return nil }
func MajorMinor(major, minor uint) *Version { return nil }
