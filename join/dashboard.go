package join

import (
	"context"
	"net/http"
	"strings"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/concord-dev/concord/api/census"
	"github.com/concord-dev/concord/dashboard"
	"github.com/concord-dev/concord/verdict"
)

// dashboardPath is where the page is; its parts are at dashboardPath + "page/". It
// shows what this server may read, to all users that may get these paths.
const dashboardPath = "/concord/"

// runsLong also lets a census, and the events of the dashboard, take their time.
func runsLong(check apirequest.LongRunningRequestCheck) apirequest.LongRunningRequestCheck {
	return func(r *http.Request, info *apirequest.RequestInfo) bool {
		return check(r, info) || !info.IsResourceRequest &&
			(strings.HasPrefix(info.Path, census.Path) || info.Path == strings.TrimSuffix(dashboardPath, "/")+dashboard.Stream)
	}
}

// serveDashboard serves the page until ctx ends. It costs nothing until somebody opens it.
func serveDashboard(ctx context.Context, config Config, server *genericapiserver.GenericAPIServer) error {
	handler, err := dashboard.New(ctx, dashboard.Config{Cluster: config.Loopback, Of: config.Address, Lifecycles: verdict.Lifecycles})
	if err != nil {
		return err
	}
	pages := http.StripPrefix(strings.TrimSuffix(dashboardPath, "/"), handler)
	server.Handler.NonGoRestfulMux.Handle(dashboardPath, pages)
	server.Handler.NonGoRestfulMux.HandlePrefix(dashboardPath+"page/", pages)
	return nil
}
