package connect

import (
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// answerTimeout bounds the wait for each answer of a cluster where --request-timeout does not. It has room for the ten
// times that client-go makes a request again after Retry-After of a second: then its error is what the server says.
const answerTimeout = 15 * time.Second

// Kubeconfig is how to reach the cluster that a kubeconfig names, or $KUBECONFIG.
func Kubeconfig(file string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	return Loaded(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil))
}

// Loaded is how a command reaches the cluster of a kubeconfig that flags were bound to.
func Loaded(flags clientcmd.ClientConfig) (*rest.Config, error) {
	config, err := flags.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig or $KUBECONFIG: %w", err)
	}
	config.QPS = -1 // a request or two for every migration, which the servers' own flow control bounds
	return AsCommand(config), nil
}

// WithTimeout returns a copy of config that waits for answers as long as config says, or else only as long as a user
// at a terminal would.
func WithTimeout(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	if config.Timeout == 0 {
		config.Timeout = answerTimeout
	}
	return config
}
