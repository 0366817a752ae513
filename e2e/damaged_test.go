package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/e2e/cluster"
)

// A StorageVersion that does not decode stops the writes of its resource, while the server
// runs and when it starts, and of no other one. Everybody is told its key and the way out,
// which is enough.
func TestDamagedStorageVersion(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.WaitSettled()
	const key = "/registry/storageversions/core.configmaps"
	wayOut := "etcdctl del " + key
	post := func(path, kind, name string) answer {
		return send(t.Context(), s.Config(), http.MethodPost, path, named("v1", kind, name))
	}
	const services = "/api/v1/namespaces/default/serviceaccounts"
	for i, again := range []func(){func() {}, s.Terminate} {
		if _, err := c.Raw.Put(t.Context(), key, "garbage"); err != nil {
			t.Fatal(err)
		}
		if again(); i > 0 {
			s.Start()
		}
		cluster.Eventually(t, time.Minute, "other resources are written, this one is not", func(context.Context) error {
			if a := post(configMapsPath, "ConfigMap", fmt.Sprint("refused-", i)); a.status != http.StatusServiceUnavailable || a.retryAfter == "" || !strings.Contains(a.body, wayOut) {
				return errors.New("this one: " + a.String())
			}
			if a := post(services, "ServiceAccount", fmt.Sprint("written-", i)); a.status != http.StatusCreated && a.status != http.StatusConflict {
				return errors.New("another one: " + a.String())
			}
			if _, body, err := s.Get(t.Context(), "/readyz/storage-versions"); err != nil || !strings.Contains(body, wayOut) {
				return fmt.Errorf("readyz: %s %w", body, err)
			}
			if !strings.Contains(s.Output(), wayOut) {
				return errors.New("the log does not name it")
			}
			return nil
		})
		if _, err := c.Raw.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		s.WaitReady()
		cluster.Eventually(t, time.Minute, "the resource is written again", func(context.Context) error {
			if a := post(configMapsPath, "ConfigMap", fmt.Sprint("written-", i)); a.status != http.StatusCreated {
				return errors.New(a.String())
			}
			return nil
		})
	}
}

// A value of a built-in resource that does not decode is named by all that meet it: by lists,
// with and without a limit, by a read of it, by the census, by preflight and by a server that starts. All
// other objects are read and written, and it can be deleted as Kubernetes has it.
func TestDamagedValue(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.WaitSettled()
	const key = "/registry/configmaps/default/damaged"
	call := func(method, path, body string) answer { return send(t.Context(), s.Config(), method, path, body) }
	for _, name := range []string{"damaged", "whole"} {
		if a := call(http.MethodPost, configMapsPath, named("v1", "ConfigMap", name)); a.status != http.StatusCreated {
			t.Fatal(a)
		}
	}
	whole, err := c.Raw.Get(t.Context(), key)
	if err != nil || len(whole.Kvs) != 1 {
		t.Fatalf("read %s: %v", key, err)
	}
	value := whole.Kvs[0].Value
	if _, err := c.Raw.Put(t.Context(), key, string(value[:len(value)-20])); err != nil {
		t.Fatal(err)
	}

	refused := func(a answer, naming ...string) error {
		for _, part := range append(naming, "default/damaged") {
			if a.status != http.StatusInternalServerError || !strings.Contains(a.body, part) {
				return errors.New(a.String())
			}
		}
		return nil
	}
	unreadable := string(metav1.StatusReasonStoreReadError)
	for i, again := range []func(){func() {}, func() { s.Terminate(); s.Start() }} {
		again()
		cluster.Eventually(t, 2*time.Minute, "it is named, and others are served", func(context.Context) error {
			written := call(http.MethodPost, configMapsPath, named("v1", "ConfigMap", fmt.Sprint("written-", i)))
			return errors.Join(
				refused(call(http.MethodGet, configMapsPath, ""), unreadable, key),
				refused(call(http.MethodGet, configMapsPath+"?limit=500", ""), unreadable, key),
				refused(call(http.MethodGet, configMapsPath+"/damaged", "")),
				is(http.StatusOK, call(http.MethodGet, configMapsPath+"/whole", "")),
				is(http.StatusCreated, written, http.StatusConflict),
			)
		})
	}
	if !strings.Contains(s.Output(), `"A stored value does not decode, so that lists of its resource fail"`) || !strings.Contains(s.Output(), key) {
		t.Error("the server that started does not name it")
	}
	census := cluster.Command(t, "census", "--verify", "--etcd-servers", c.Endpoint)
	if census.Code != 0 || !strings.Contains(census.Stdout, "values that do not decode: 1\n  \""+key+`": `) {
		t.Errorf("the census does not name it: exit %d: %s%s", census.Code, census.Stdout, census.Stderr)
	}
	for _, source := range sources(c) {
		if code, unsafe := preflight(t, append(source, "--to", "1.38")...); code != 1 || !strings.HasPrefix(unsafe["configmaps"], "unknown: 1 value is unreadable") {
			t.Errorf("preflight %v does not name it: exit %d: %v", source, code, unsafe)
		}
	}

	one := configMapsPath + "/damaged"
	if err := refused(call(http.MethodDelete, one, "")); err != nil {
		t.Errorf("an ordinary delete: %v", err)
	}
	const ignoring = `{"apiVersion":"v1","kind":"DeleteOptions","ignoreStoreReadErrorWithClusterBreakingPotential":true}`
	if err := is(http.StatusOK, call(http.MethodDelete, one, ignoring)); err != nil {
		t.Errorf("a delete that ignores what it cannot read: %v", err)
	}
	cluster.Eventually(t, time.Minute, "the resource is listed again", func(context.Context) error {
		return is(http.StatusOK, call(http.MethodGet, configMapsPath, ""))
	})
	s.WaitReady()
	if census := cluster.Command(t, "census", "--verify", "--etcd-servers", c.Endpoint); !strings.Contains(census.Stdout, "\nall others decode\n") || strings.Contains(census.Stdout, "do not decode") {
		t.Errorf("after it was deleted the census says: %s%s", census.Stdout, census.Stderr)
	}
}

// is says why an answer has none of the statuses.
func is(status int, a answer, others ...int) error {
	if a.status != status && !slices.Contains(others, a.status) {
		return errors.New(a.String())
	}
	return nil
}
