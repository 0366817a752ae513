package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/dashboard"
	"github.com/concord-dev/concord/verdict"
)

func newDashboardCommand(p *plugin) *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a live status page, on this machine only",
		Long: `Serve a live status page. It shows how each server stores each resource, problems, migrations,
recent events, and whether the releases before and after this one could read the stored
objects. The page changes nothing.

It is served on the loopback interface, with your credentials, until you interrupt the command.
Its URL contains a token, so that other users of this machine cannot open it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.dashboard(cmd.Context(), cmd.OutOrStdout(), port)
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "the port of 127.0.0.1 to listen on; 0 is any that is free")
	return cmd
}

func (p *plugin) dashboard(ctx context.Context, out io.Writer, port uint16) error {
	config, err := p.config()
	if err != nil {
		return err
	}
	// Errors are on the page.
	ctx = logr.NewContext(ctx, logr.Discard())
	handler, err := dashboard.New(ctx, dashboard.Config{Cluster: config, Of: config.Host, Lifecycles: verdict.Lifecycles})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("--port %d: %w", port, err)
	}
	handler.Begin()
	local := dashboard.NewLocal(handler, listener.Addr())
	server := &http.Server{Handler: local, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve says how it ended
	defer stop()
	if _, err := fmt.Fprintf(out, "%s\nshows %s until you press Ctrl-C.\n", local.URL(), config.Host); err != nil {
		return err
	}
	go func() { _, _ = io.WriteString(out, unreachable(ctx, config)) }() // the page has it, too
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// unreachable explains why a cluster does not answer; "" if it answers, even with an error.
func unreachable(ctx context.Context, config *rest.Config) string {
	client, err := discovery.NewDiscoveryClientForConfig(connect.WithTimeout(config))
	if err == nil {
		err = client.RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	}
	if answered := apierrors.APIStatus(nil); err == nil || errors.As(err, &answered) {
		return ""
	}
	return fmt.Sprintf("It does not answer now, and the page shows it when it does: %v\n", err)
}
