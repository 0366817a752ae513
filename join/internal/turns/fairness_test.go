package turns

import (
	"context"
	"sync"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
)

// TestWrap has one request hold the only turn of a server whose CPUs are busy for ever.
func TestWrap(t *testing.T) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://127.0.0.1:1"}) // nothing is asked
	if err != nil {
		t.Fatal(err)
	}
	turns, now := New(1), testclock.NewFakeClock(time.Unix(0, 0))
	turns.clock, turns.busy = now, func() bool { return true }
	apf := turns.Wrap(flowcontrol.New(informers.NewSharedInformerFactory(client, 0), client.FlowcontrolV1(), 10))

	// handle says whether a request was served, and in which priority level.
	handle := func(ctx context.Context, verb, name, group string, serve func()) (served bool, level string) {
		digest := flowcontrol.RequestDigest{
			RequestInfo: &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: "configmaps", Namespace: "default"},
			User:        &user.DefaultInfo{Name: name, Groups: []string{group, user.AllAuthenticated}},
		}
		apf.Handle(ctx, digest, func(_ *flowcontrolv1.FlowSchema, l *flowcontrolv1.PriorityLevelConfiguration, _ string) {
			level = l.Name
		},
			func() flowcontrolrequest.WorkEstimate {
				return flowcontrolrequest.WorkEstimate{InitialSeats: 1, FinalSeats: 1}
			},
			func(bool) {}, func() { serve(); served = true })
		return served, level
	}
	began, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		handle(t.Context(), "create", "flood", "users", func() { close(began); <-release })
	}()
	<-began

	soon, cancel := context.WithTimeout(t.Context(), longest/10)
	defer cancel()
	if served, _ := handle(t.Context(), "create", "normal", "users", func() {}); !served {
		t.Error("the only request of a flow waits for that of another")
	}
	turns.allow(1, 0)
	if served, level := handle(soon, "create", "normal", "users", func() {}); served || level != flowcontrolv1.PriorityLevelConfigurationNameCatchAll {
		t.Errorf("a request of level %q was served: %v, although another one has the only turn", level, served)
	}
	if served, _ := handle(soon, "watch", "normal", "users", func() {}); !served {
		t.Error("a watch waits for its turn")
	}
	if served, level := handle(soon, "create", "admin", user.SystemPrivilegedGroup, func() {}); !served || level != flowcontrolv1.PriorityLevelConfigurationNameExempt {
		t.Errorf("a request of level %q was served: %v, although it is exempt", level, served)
	}
	now.Step(longest)
	later, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if served, _ := handle(later, "create", "normal", "users", func() {}); !served {
		t.Error("a request waits for ever behind one that takes long")
	}
	// There are ten seats. Those that wait take none.
	turns.allow(0, 0)
	var crowd sync.WaitGroup
	for n := range 40 {
		crowd.Go(func() {
			if served, _ := handle(later, "create", "normal", "users", func() {}); !served {
				t.Errorf("request %d of 40 was refused", n)
			}
		})
		for turns.waits() <= n {
			if later.Err() != nil {
				t.Fatalf("request %d of 40 neither waits nor ends", n)
			}
			time.Sleep(time.Millisecond)
		}
	}
	turns.allow(1, 0)
	crowd.Wait()
	close(release)
	<-ended
}

func (t *Turns) allow(most, mostFirst int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.most, t.mostFirst = most, mostFirst
}

func (t *Turns) waits() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queued
}
