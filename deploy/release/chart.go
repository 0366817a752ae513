package main

import (
	"bytes"
	"fmt"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
)

// newestTag is the image's tag in the chart's values, which a release replaces by its own.
var newestTag = []byte("\n  tag: latest\n")

// commitAnnotation is the chart's annotation with the commit that it was packed from, named as the
// label of the images.
const commitAnnotation = "org.opencontainers.image.revision"

// pack writes the archive of a chart for a release, whose image and commit it names, and returns its name.
func pack(folder, version, commit, out string) (string, error) {
	chart, err := loader.Load(folder)
	if err != nil {
		return "", err
	}
	chart.Metadata.Version, chart.Metadata.AppVersion = version, version
	if chart.Metadata.Annotations == nil {
		chart.Metadata.Annotations = map[string]string{}
	}
	chart.Metadata.Annotations[commitAnnotation] = commit
	for _, file := range chart.Raw {
		if file.Name != chartutil.ValuesfileName {
			continue
		}
		if bytes.Count(file.Data, newestTag) != 1 {
			return "", fmt.Errorf("%s has no image.tag %q that a release could replace", chartutil.ValuesfileName, "latest")
		}
		file.Data = bytes.Replace(file.Data, newestTag, fmt.Appendf(nil, "\n  tag: %q\n", version), 1)
	}
	return chartutil.Save(chart, out)
}
