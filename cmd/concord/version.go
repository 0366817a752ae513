package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/build"
	"github.com/concord-dev/concord/compat"
)

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of Concord and of the Kubernetes release that it contains",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := versionText(output)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json or yaml; empty for text.")
	return cmd
}

// versionInfo is the output of the command.
type versionInfo struct {
	Concord build.Info `json:"concord"`
	// Kubernetes is the release that the binary stands for; a server emulates Emulation, and the
	// objects it stores can be read from MinCompatibility on, unless its flags say otherwise.
	Kubernetes       string `json:"kubernetes"`
	Emulation        string `json:"emulation"`
	MinCompatibility string `json:"minCompatibility"`
}

func versionText(output string) (string, error) {
	binary := compat.BinaryVersion()
	emulation, minCompatibility, err := compat.ParseVersions(binary, "", "")
	if err != nil {
		return "", err
	}
	info := versionInfo{build.This(), binary.String(), emulation.String(), minCompatibility.String()}
	var text []byte
	switch output {
	case "":
		return fmt.Sprintf("concord %s\nkubernetes %s, emulation %s, min compatibility %s by default\n",
			info.Concord, info.Kubernetes, info.Emulation, info.MinCompatibility), nil
	case "json":
		text, err = json.MarshalIndent(info, "", "  ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(info)
	default:
		return "", fmt.Errorf("--output %s is not supported: json or yaml", output)
	}
	return string(text), err
}

// withVersionFlag gives a command the flag --version, which prints the same as the command version.
func withVersionFlag(cmd *cobra.Command) *cobra.Command {
	if text, err := versionText(""); err == nil { // else the command version says why not
		cmd.Version = text
		// Before cobra looks, which would find that of Kubernetes' library.
		cmd.Flags().Bool("version", false, "Print which Concord this is, and exit.")
		cmd.SetVersionTemplate("{{.Version}}")
	}
	return cmd
}
