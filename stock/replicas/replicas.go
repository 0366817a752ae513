// Package replicas finds the kube-apiservers of a cluster by their identity Leases, and asks each of them
// by itself how it stores resources.
package replicas

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/workers"
)

const (
	// servedAs is the name that every kube-apiserver's certificate has.
	servedAs = "kubernetes.default.svc"
	// parallelAsks bounds the requests that one replica is sent at a time.
	parallelAsks = 16
)

// Config says how kube-apiservers are found and asked.
type Config struct {
	// Kube is a client of any of them, Rest the configuration of clients of each: all but its address.
	Kube kubernetes.Interface
	Rest *rest.Config
	// Override are addresses by the name of the Lease; "" is for kube-apiservers without an entry.
	Override map[string]string
	// Together says that replicas cannot be asked one by one, but only all behind one address.
	Together bool
	// Timeout bounds each request.
	Timeout time.Duration
	Clock   clock.Clock
	Logger  logr.Logger
}

// Asker finds kube-apiservers and asks each of them.
type Asker struct {
	Config
	// uncounted makes it be logged only once that endpoints cannot be read.
	uncounted sync.Once

	mu     sync.Mutex
	places observed.Places
	// clients are by address.
	clients map[string]clients
}

// New returns an Asker that knows no kube-apiserver yet.
func New(c Config) *Asker { return &Asker{Config: c, clients: map[string]clients{}} }

// clients are for one replica.
type clients struct {
	*discovery.DiscoveryClient
	objects metadata.Interface
}

// Found are the servers that there are.
type Found struct {
	Replicas []observed.Replica
	// Concord are the servers that report by themselves.
	Concord []string
}

// Find reads the identity Leases, and where their holders are reached: as an annotation says
// (Kubernetes 1.36), else at the endpoints of the Service default/kubernetes. Those do not say
// whose they are. That does no harm: it counts only if all are asked.
func (a *Asker) Find(ctx context.Context) (Found, error) {
	leases, err := a.Kube.CoordinationV1().Leases(storageversion.IdentityNamespace).List(ctx, metav1.ListOptions{LabelSelector: storageversion.IdentitySelector})
	if err != nil {
		return Found{}, fmt.Errorf("list identity Leases: %w", err)
	}
	var f Found
	for _, lease := range storageversion.ControlPlane(leases.Items) { // the Lease of an aggregated API server may outlast it for years
		if storageversion.SilenceOf(&lease) != agree.Stock {
			f.Concord = append(f.Concord, lease.Name)
			continue
		}
		r := replicaOf(&lease)
		if address, ok := a.Override[lease.Name]; ok {
			r.Address = address
		} else if address, ok := a.Override[""]; ok && r.Address == "" {
			r.Address = address
		}
		f.Replicas = append(f.Replicas, r)
	}
	f.Replicas = observed.Alive(f.Replicas, a.Clock.Now())
	unplaced := slices.ContainsFunc(f.Replicas, func(r observed.Replica) bool { return r.Address == "" })
	if a.Together {
		f.Replicas = together(f.Replicas)
		return f, nil
	}
	a.mu.Lock()
	f.Replicas = a.places.Take(f.Replicas, a.Clock.Now())
	a.mu.Unlock()
	endpoints, err := a.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if apierrors.IsForbidden(err) && !unplaced { // an operator may lack the right: then endpoints are not counted
		a.uncounted.Do(func() {
			a.Logger.Info("Endpoints of kube-apiservers are not counted, so that one without a Lease is not noticed", "reason", err.Error())
		})
		endpoints, err = &discoveryv1.EndpointSliceList{}, nil
	}
	if err != nil {
		return Found{}, fmt.Errorf("list the EndpointSlices of default/kubernetes: %w", err)
	}
	assign(f.Replicas, addresses(endpoints.Items))
	f.Replicas = observed.Apart(f.Replicas)
	if len(f.Concord) == 0 {
		f.Replicas = observed.Counted(f.Replicas, ready(endpoints.Items))
	}
	return f, nil
}

// anyReplica stands for the replica that answers behind one address of all.
const anyReplica = "any-kube-apiserver"

// together makes one replica of all. It is a different one when any of them changes.
func together(replicas []observed.Replica) []observed.Replica {
	var holders []string
	for _, r := range replicas {
		holders = append(holders, r.Holder)
	}
	return []observed.Replica{{Process: observed.Process{Lease: anyReplica, Holder: strings.Join(holders, ",")}}}
}

func replicaOf(lease *coordinationv1.Lease) observed.Replica {
	r := observed.Replica{
		Process: observed.Process{Lease: agree.ServerID(lease.Name), Holder: ptr.Deref(lease.Spec.HolderIdentity, "")},
		Address: lease.Annotations[corev1.AnnotationPeerAdvertiseAddress],
		Lasts:   time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second,
	}
	if lease.Spec.RenewTime != nil {
		r.Renewed = lease.Spec.RenewTime.Time
	}
	return r
}

// ready counts the hosts that are ready of the address family that has most: a kube-apiserver may have an
// address of each.
func ready(items []discoveryv1.EndpointSlice) (most int) {
	hosts := map[discoveryv1.AddressType]map[string]bool{}
	for _, slice := range items {
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				if hosts[slice.AddressType] == nil {
					hosts[slice.AddressType] = map[string]bool{}
				}
				if ptr.Deref(endpoint.Conditions.Ready, true) {
					hosts[slice.AddressType][address] = true
				}
			}
		}
		most = max(most, len(hosts[slice.AddressType]))
	}
	return most
}

func addresses(items []discoveryv1.EndpointSlice) []string {
	var all []string
	for _, slice := range items {
		for _, port := range slice.Ports {
			for _, endpoint := range slice.Endpoints {
				for _, address := range endpoint.Addresses {
					all = append(all, net.JoinHostPort(address, strconv.Itoa(int(ptr.Deref(port.Port, 443)))))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// assign gives endpoints to replicas whose Lease names no address, in order, if there are as
// many of both.
func assign(replicas []observed.Replica, addresses []string) {
	free := slices.DeleteFunc(slices.Clone(addresses), func(address string) bool {
		return slices.ContainsFunc(replicas, func(r observed.Replica) bool { return r.Address == address })
	})
	var unplaced []*observed.Replica
	for i := range replicas {
		if r := &replicas[i]; r.Address == "" && r.Nowhere == "" {
			unplaced = append(unplaced, r)
		}
	}
	if len(unplaced) != len(free) {
		return
	}
	for i, r := range unplaced {
		r.Address = free[i]
	}
}

// at is how to reach the replica at an address: with its certificate checked against the
// cluster's CA, under the name that every kube-apiserver has.
func (a *Asker) at(address string) *rest.Config {
	config := rest.CopyConfig(a.Rest)
	if a.Together {
		return config
	}
	config.Host, config.QPS = "https://"+address, -1
	if !config.Insecure {
		config.ServerName = servedAs
	}
	return config
}

// Objects reads and patches objects through the replica at an address.
func (a *Asker) Objects(address string) (metadata.Interface, error) {
	c, err := a.client(address)
	return c.objects, err
}

func (a *Asker) client(address string) (c clients, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c, ok := a.clients[address]; ok {
		return c, nil
	}
	config := a.at(address)
	config.Timeout = time.Minute
	if c.objects, err = metadata.NewForConfig(config); err != nil {
		return c, err
	}
	config.Timeout = a.Timeout
	if c.DiscoveryClient, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return c, err
	}
	c.UseLegacyDiscovery = true // a replica answers it for itself
	a.clients[address] = c
	return c, nil
}

// Ask asks a replica how it stores resources; only those of some groups if only is given. remote are the
// group/versions that other programs serve.
func (a *Asker) Ask(ctx context.Context, r observed.Replica, only sets.Set[string], remote map[schema.GroupVersion]bool) observed.Answer {
	if r.Address == "" && !a.Together {
		a.missed(r, false)
		return observed.Answer{Failed: cmp.Or(r.Nowhere, "has no address that is known")}
	}
	answer, versions, err := a.discover(ctx, r.Address, only, remote)
	if err != nil {
		a.missed(r, errors.Is(err, syscall.ECONNREFUSED)) // a host that is paused is unreachable, too
		failed := strings.TrimSpace("does not answer at " + r.Address)
		if versions > 0 { // how many it answered about differs from one time to the next
			failed += fmt.Sprintf(" for all of its %d group/versions", versions)
		}
		return observed.Answer{Failed: failed + ": " + brief(err)}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.places.Answered(r.Process)
	return answer
}

func (a *Asker) missed(r observed.Replica, refused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.places.Missed(r.Process, refused, a.Clock.Now())
}

// streamID is the number that HTTP/2 gives a request, in the texts of its errors.
var streamID = regexp.MustCompile(`(LastStreamID=|stream ID )\d+[,;] `)

// brief is an error's text without the parts that differ each time, such as ports of connections.
func brief(err error) string {
	if apierrors.IsTimeout(err) || utilnet.IsTimeout(err) || errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	var certificate x509.CertificateInvalidError
	if errors.As(err, &certificate) && certificate.Reason == x509.Expired && certificate.Cert != nil { // its text tells the time
		return fmt.Sprintf("its certificate has expired or is not yet valid: it is from %s to %s",
			certificate.Cert.NotBefore.UTC().Format(time.RFC3339), certificate.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	var connection *net.OpError
	if errors.As(err, &connection) {
		err = connection.Err
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	return streamID.ReplaceAllString(err.Error(), "")
}

// discover returns a replica's answer, and how many group/versions it was asked about; 0 if it did not say which it
// has. If only some groups are asked about, those that it answers for count; a question about everything needs all of
// them.
func (a *Asker) discover(ctx context.Context, address string, only sets.Set[string], remote map[schema.GroupVersion]bool) (answer observed.Answer, asked int, err error) {
	c, err := a.client(address)
	if err != nil {
		return answer, 0, err
	}
	first, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	version, err := c.ServerVersionWithContext(first)
	if err != nil {
		return answer, 0, err
	}
	groups, err := c.ServerGroupsWithContext(first)
	if err != nil {
		return answer, 0, err
	}
	var versions []schema.GroupVersion
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			if gv := (schema.GroupVersion{Group: g.Name, Version: v.Version}); !remote[gv] && (len(only) == 0 || only.Has(g.Name)) {
				versions = append(versions, gv)
			}
		}
	}
	lists, errs := a.resources(ctx, c, versions)
	answer = observed.Answer{Release: version.Major + "." + strings.TrimRight(version.Minor, "+"), Shown: map[schema.GroupResource]observed.Shown{}, Unanswered: map[schema.GroupVersion]string{}}
	for i, gv := range versions {
		switch {
		case errs[i] != nil:
			err = cmp.Or(err, errs[i])
			answer.Unanswered[gv] = fmt.Sprintf("%s for %s: %s", strings.TrimSpace("does not answer at "+address), gv, brief(errs[i]))
		case lists[i] != nil:
			show(answer.Shown, gv, lists[i].APIResources)
		}
	}
	if err != nil && (len(only) == 0 || len(answer.Unanswered) == len(versions)) {
		return observed.Answer{}, len(versions), err
	}
	return answer, len(versions), nil
}

// resources asks for the resources of group/versions, some at a time; nil for those that have gone. All of them
// together may take half as long again as a single request, because looks at single resources wait for it.
func (a *Asker) resources(ctx context.Context, c clients, versions []schema.GroupVersion) ([]*metav1.APIResourceList, []error) {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout*3/2)
	defer cancel()
	lists, errs := make([]*metav1.APIResourceList, len(versions)), make([]error, len(versions))
	var group errgroup.Group
	group.SetLimit(parallelAsks)
	for i, gv := range versions {
		group.Go(func() error {
			errs[i] = workers.Do(ctx, "ask", func() error {
				list, err := c.ServerResourcesForGroupVersionWithContext(ctx, gv.String())
				if !apierrors.IsNotFound(err) {
					lists[i] = list
					return err
				}
				return nil
			})
			return nil
		})
	}
	_ = group.Wait() // errs has them all
	return lists, errs
}

// show adds the entries of a discovery document for the resources that are stored.
func show(shown map[schema.GroupResource]observed.Shown, gv schema.GroupVersion, resources []metav1.APIResource) {
	for _, r := range resources {
		if r.StorageVersionHash == "" || strings.Contains(r.Name, "/") {
			continue
		}
		gr := schema.GroupResource{Group: gv.Group, Resource: r.Name}
		s := shown[gr]
		s.Hash, s.Kind, s.Served = r.StorageVersionHash, r.Kind, append(s.Served, gv.String())
		shown[gr] = s
	}
}
