package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/concord-dev/concord/e2e/cluster"
)

// TestAPI uses one server, with its etcd in it, as people do.
func TestAPI(t *testing.T) {
	t.Parallel()
	c := cluster.NewEmbedded(t)
	s := c.Start(cluster.Options{}, "one")[0]
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster.Server)
	}{
		{"Access", testAccess},
		{"Endpoints", testEndpoints},
		{"Discovery", testDiscovery},
		{"OpenAPI", testOpenAPI},
		{"Objects", testObjects},
		{"Watch", testWatch},
		{"Pagination", testPagination},
		{"DryRun", testDryRun},
		{"Selectors", testSelectors},
		{"ServerSideApply", testServerSideApply},
		{"CustomResources", testCustomResources},
		{"Reviews", testReviews},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s) })
	}
	if path, err := exec.LookPath("kubectl"); err == nil {
		t.Run("Kubectl", func(t *testing.T) { testKubectl(t, newKubectl(t, path, s)) })
	} else {
		t.Log("there is no kubectl on the PATH: what it does was tested with client-go alone")
	}
	c.Check()
	s.Terminate()
}

// inNamespace makes a namespace for one test. It is left to the end of the server.
func inNamespace(t *testing.T, s *cluster.Server) string {
	t.Helper()
	name := strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	_, err := s.Kube().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func configMap(name, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"text": text}}
}

func testObjects(t *testing.T, s *cluster.Server) {
	namespace := inNamespace(t, s)
	maps := s.Kube().CoreV1().ConfigMaps(namespace)
	made, err := maps.Create(t.Context(), configMap("a", "first"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(t.Context(), configMap("a", "again"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second object of the same name: %v, want AlreadyExists", err)
	}
	if _, err := maps.Create(t.Context(), configMap("Bad_Name", ""), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a name that is none: %v, want Invalid", err)
	}
	changed := made.DeepCopy()
	changed.Data["text"] = "second"
	if changed, err = maps.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if changed.ResourceVersion == made.ResourceVersion || changed.UID != made.UID {
		t.Errorf("after an update the object is %s/%s, before %s/%s", changed.UID, changed.ResourceVersion, made.UID, made.ResourceVersion)
	}
	made.Data["text"] = "stale"
	if _, err := maps.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of an older version: %v, want Conflict", err)
	}
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its deletion the object is read with: %v, want NotFound", err)
	}
	if _, err := s.Kube().CoreV1().ConfigMaps("nowhere").Create(t.Context(), configMap("a", ""), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an object in a namespace that does not exist: %v, want NotFound", err)
	}
	if err := s.Kube().CoreV1().Namespaces().Delete(t.Context(), metav1.NamespaceDefault, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deletion of the default namespace: %v, want Forbidden", err)
	}
}

func testWatch(t *testing.T, s *cluster.Server) {
	namespace := inNamespace(t, s)
	maps := s.Kube().CoreV1().ConfigMaps(namespace)
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	// Kubernetes' controllers make a ConfigMap in every new namespace, too.
	events, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "metadata.name=a"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	made, err := maps.Create(ctx, configMap("a", "first"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Data["text"] = "second"
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ADDED first", "MODIFIED second", "DELETED second"} {
		event, ok := <-events.ResultChan()
		if !ok {
			t.Fatalf("the watch ended before %s", want)
		}
		object, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			t.Fatalf("event %v, want %s", event, want)
		}
		if got := fmt.Sprintf("%s %s", event.Type, object.Data["text"]); got != want {
			t.Errorf("event %s, want %s", got, want)
		}
	}
	expired, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
	if err == nil {
		defer expired.Stop()
		if event := <-expired.ResultChan(); event.Type != watch.Error && event.Type != watch.Added {
			t.Errorf("a watch from revision 1 begins with %v", event)
		}
	}
}

func testPagination(t *testing.T, s *cluster.Server) {
	namespace := inNamespace(t, s)
	maps := s.Kube().CoreV1().ConfigMaps(namespace)
	const n, limit = 12, 5
	for i := range n {
		if _, err := maps.Create(t.Context(), configMap(fmt.Sprintf("c%02d", i), ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// One that every namespace has comes last.
	cluster.Eventually(t, time.Minute, "the namespace has its root CA", func(ctx context.Context) error {
		_, err := maps.Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	var names []string
	options := metav1.ListOptions{Limit: limit}
	for {
		page, err := maps.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Items) > limit {
			t.Errorf("a page has %d objects, want at most %d", len(page.Items), limit)
		}
		for _, item := range page.Items {
			names = append(names, item.Name)
		}
		if page.Continue == "" {
			break
		}
		if options.Continue == "" && (page.RemainingItemCount == nil || *page.RemainingItemCount != n+1-limit) {
			t.Errorf("the first page does not say that %d objects remain: %v", n+1-limit, page.RemainingItemCount)
		}
		// A later object is not part of the list that was begun.
		if _, err := maps.Create(t.Context(), configMap(fmt.Sprintf("d%d", len(names)), ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		options.Continue = page.Continue
	}
	if last := len(names) - 1; last >= 0 && names[last] == "kube-root-ca.crt" {
		names = names[:last]
	}
	if len(names) != n || !slices.IsSorted(names) || len(slices.Compact(names)) != n {
		t.Errorf("the pages have %v, want c00 to c%02d", names, n-1)
	}
}

func testDryRun(t *testing.T, s *cluster.Server) {
	namespace := inNamespace(t, s)
	maps := s.Kube().CoreV1().ConfigMaps(namespace)
	dry := []string{metav1.DryRunAll}
	made, err := maps.Create(t.Context(), configMap("a", ""), metav1.CreateOptions{DryRun: dry})
	if err != nil || made.UID == "" {
		t.Errorf("dry run of a create: %v, %v", made, err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a dry run the object is read with %v, want NotFound", err)
	}
	if _, err := maps.Create(t.Context(), configMap("a", "kept"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "a", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Errorf("after a dry run of its deletion: %v", err)
	}
}

func testSelectors(t *testing.T, s *cluster.Server) {
	namespace := inNamespace(t, s)
	secrets := s.Kube().CoreV1().Secrets(namespace)
	for name, kind := range map[string]corev1.SecretType{"a": "", "b": "example.com/special"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}, Type: kind}
		if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		options metav1.ListOptions
		want    []string
	}{
		{metav1.ListOptions{FieldSelector: "type=Opaque"}, []string{"a"}},
		{metav1.ListOptions{FieldSelector: "type!=Opaque"}, []string{"b"}},
		{metav1.ListOptions{FieldSelector: "metadata.name=b"}, []string{"b"}},
		{metav1.ListOptions{LabelSelector: "name in (a, b)"}, []string{"a", "b"}},
		{metav1.ListOptions{LabelSelector: "name=a", FieldSelector: "metadata.name=b"}, nil},
	} {
		list, err := secrets.List(t.Context(), test.options)
		if err != nil {
			t.Errorf("%+v: %v", test.options, err)
			continue
		}
		var names []string
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		if !slices.Equal(names, test.want) {
			t.Errorf("%+v selects %v, want %v", test.options, names, test.want)
		}
	}
	if _, err := secrets.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nothing=1"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a field selector that is none: %v, want BadRequest", err)
	}
	active, err := s.Kube().CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{FieldSelector: "status.phase=Active,metadata.name=" + namespace})
	if err != nil || len(active.Items) != 1 {
		t.Errorf("active namespaces named %s: %v, %v", namespace, active, err)
	}
}

func testServerSideApply(t *testing.T, s *cluster.Server) {
	namespace := inNamespace(t, s)
	maps := s.Kube().CoreV1().ConfigMaps(namespace)
	apply := func(manager, key, value string, force bool) (*corev1.ConfigMap, error) {
		config := applycorev1.ConfigMap("a", namespace).WithData(map[string]string{key: value})
		return maps.Apply(t.Context(), config, metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	if _, err := apply("one", "x", "1", false); err != nil {
		t.Fatal(err)
	}
	if _, err := apply("two", "y", "2", false); err != nil {
		t.Fatal(err)
	}
	if _, err := apply("two", "x", "3", false); !apierrors.IsConflict(err) {
		t.Errorf("apply to another's field: %v, want Conflict", err)
	}
	got, err := apply("two", "x", "3", true)
	if err != nil {
		t.Fatal(err)
	}
	// The field that its manager no longer applies goes away.
	if want := map[string]string{"x": "3"}; fmt.Sprint(got.Data) != fmt.Sprint(want) {
		t.Errorf("after a forced apply the data is %v, want %v", got.Data, want)
	}
}

func testCustomResources(t *testing.T, s *cluster.Server) {
	namespace := inNamespace(t, s)
	createWidgets(t, "v1", s)
	ones := s.Dynamic().Resource(widgets.WithVersion("v1")).Namespace(namespace)
	twos := s.Dynamic().Resource(widgets.WithVersion("v2")).Namespace(namespace)
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": widgetGroup + "/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "a"},
		"spec":     map[string]any{"text": "hello", "pruned": "away"},
	}}
	if _, err := ones.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := twos.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]any{"text": "hello"}; fmt.Sprint(got.Object["spec"]) != fmt.Sprint(want) || got.GetAPIVersion() != widgetGroup+"/v2" {
		t.Errorf("the object reads %v in the other version, want spec %v", got.Object, want)
	}
	object.SetName("b")
	object.Object["spec"] = map[string]any{"text": int64(1)}
	if _, err := ones.Create(t.Context(), object, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an object against the schema: %v, want Invalid", err)
	}
}

func testReviews(t *testing.T, s *cluster.Server) {
	me, err := s.Kube().AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != "admin" || !slices.Contains(me.Status.UserInfo.Groups, "system:masters") {
		t.Errorf("the administrator is %+v, %v", me, err)
	}
	can := &authorizationv1.SelfSubjectAccessReview{}
	can.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Verb: "delete", Resource: "secrets", Namespace: "default"}
	can, err = s.Kube().AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), can, metav1.CreateOptions{})
	if err != nil || !can.Status.Allowed {
		t.Errorf("may the administrator delete secrets: %+v, %v", can, err)
	}
}
