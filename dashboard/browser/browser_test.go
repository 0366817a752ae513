package browser

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/launcher"
	"github.com/go-rod/rod/lib/proto"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/dashboard"
	e2e "github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/verdict"
)

// patience is how long tests wait for something that is expected, on a busy machine.
const patience = 3 * time.Minute

var screenshots = flag.String("screenshots", "", "a directory to write pictures of the page to")

//go:embed testdata/axe-core/axe.min.js
var axe string

func TestMain(m *testing.M) {
	e2e.Serve()
	flag.Parse()
	os.Exit(e2e.Suite{M: m}.Run())
}

// chromium starts the browser.
func chromium(t *testing.T) *rod.Browser {
	t.Helper()
	program := os.Getenv("CHROMIUM")
	if program == "" {
		var err error
		if program, err = exec.LookPath("chromium"); err != nil {
			t.Fatalf("%v: install it (apt-get install chromium), or set $CHROMIUM", err)
		}
	}
	l := launcher.New().Bin(program).NoSandbox(true).Leakless(false).Headless(true).UserDataDir(t.TempDir()).Set("disable-gpu").Set("disable-dev-shm-usage")
	url, err := l.Launch()
	must(t, err)
	b := rod.New().ControlURL(url)
	if err := b.Connect(); err != nil {
		l.Kill()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = b.Close() // it is killed
		l.Kill()
		l.Cleanup()
	})
	return b
}

// site serves the dashboard of a cluster as kubectl concord dashboard does. It can be stopped,
// and then comes back at its old address.
type site struct {
	t     *testing.T
	pages *dashboard.Handler
	local *dashboard.Local
	at    string
	http  *http.Server
}

func serve(t *testing.T, config *rest.Config) *site {
	t.Helper()
	pages, err := dashboard.New(t.Context(), dashboard.Config{Cluster: config, Of: "https://example.test:6443", Lifecycles: verdict.Lifecycles})
	must(t, err)
	// Its port is one that an outgoing connection does not take before it comes back.
	listener, err := net.Listen("tcp", e2e.FreeAddress(t))
	must(t, err)
	s := &site{t: t, pages: pages, local: dashboard.NewLocal(pages, listener.Addr()), at: listener.Addr().String()}
	s.start(listener)
	t.Cleanup(s.stop)
	return s
}

func (s *site) start(listener net.Listener) {
	s.http = &http.Server{Handler: s.local}
	go func() { _ = s.http.Serve(listener) }() // until stop
}

// stop ends all connections, and accepts none.
func (s *site) stop() { _ = s.http.Close() }

func (s *site) comeBack() {
	s.t.Helper()
	listener, err := net.Listen("tcp", s.at)
	must(s.t, err)
	s.start(listener)
}

// view is a page in the browser.
type view struct {
	*rod.Page
	t *testing.T
}

// look is the size and the colour scheme in which a page is looked at.
type look struct {
	width, height int
	dark          bool
}

func open(t *testing.T, b *rod.Browser, url string, l look) *view {
	t.Helper()
	p, err := b.Page(proto.TargetCreateTarget{})
	must(t, err)
	v := &view{p.Timeout(10 * time.Minute), t}
	v.as(l)
	if _, err := v.EvalOnNewDocument(`window.tasks = []; window.broken = [];
		new PerformanceObserver((list) => { for (const e of list.getEntries()) window.tasks.push(e.duration); }).observe({ type: 'longtask', buffered: true });
		addEventListener('error', (e) => window.broken.push(String(e.message)));
		addEventListener('unhandledrejection', (e) => window.broken.push(String(e.reason)));
		addEventListener('securitypolicyviolation', (e) => window.broken.push('policy ' + e.violatedDirective + ' ' + e.blockedURI));`); err != nil {
		t.Fatal(err)
	}
	must(t, v.Navigate(url))
	t.Cleanup(func() {
		if broken := v.strings(`() => window.broken`); len(broken) > 0 {
			t.Errorf("errors in the page: %q", broken)
		}
		_ = v.Close() // the browser ends
	})
	return v
}

// as shows the page in another size and colour scheme.
func (v *view) as(l look) {
	v.t.Helper()
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	must(v.t, (proto.EmulationSetEmulatedMedia{Features: []*proto.EmulationMediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}).Call(v))
	must(v.t, (proto.EmulationSetDeviceMetricsOverride{Width: l.width, Height: l.height, DeviceScaleFactor: 1}).Call(v))
}

// eval evaluates a JavaScript function into the variable that into points to.
func (v *view) eval(into any, js string, args ...any) {
	v.t.Helper()
	result, err := v.Evaluate(rod.Eval(js, args...).ByPromise())
	if err != nil {
		v.t.Fatalf("%s: %v", js, err)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(result.Value.JSON("", "")), into); err != nil {
			v.t.Fatalf("%s: %v", js, err)
		}
	}
}

func (v *view) strings(js string, args ...any) (all []string) {
	v.t.Helper()
	v.eval(&all, js, args...)
	return all
}

// text returns the text of a part of the page.
func (v *view) text(selector string) (text string) {
	v.t.Helper()
	v.eval(&text, `(s) => document.querySelector(s)?.textContent ?? ''`, selector)
	return text
}

// waitText waits until a part of the page shows each of some texts.
func (v *view) waitText(selector string, want ...string) {
	v.t.Helper()
	v.wait(func() error {
		got := v.text(selector)
		for _, w := range want {
			if !strings.Contains(got, w) {
				return fmt.Errorf("%s shows %q, and not %q", selector, got, w)
			}
		}
		return nil
	})
}

// traced collects how much processor time each task of the page's main thread takes, in ms, until done
// is called. Unlike the duration of a task, this time does not grow with the other work of the machine.
func (v *view) traced() (done func() []float64) {
	v.t.Helper()
	type task struct {
		Name, Ph string
		Pid, Tid int64
		Tdur     float64
		Args     struct{ Name string }
	}
	var all []task
	wait := v.EachEvent(func(e *proto.TracingDataCollected) {
		for _, value := range e.Value {
			var one task
			text, err := json.Marshal(value)
			if err == nil && json.Unmarshal(text, &one) == nil {
				all = append(all, one)
			}
		}
	}, func(*proto.TracingTracingComplete) bool { return true })
	err := proto.TracingStart{TransferMode: proto.TracingStartTransferModeReportEvents, TraceConfig: &proto.TracingTraceConfig{
		IncludedCategories: []string{"disabled-by-default-devtools.timeline", "__metadata"}, ExcludedCategories: []string{"*"},
	}}.Call(v)
	must(v.t, err)
	return func() (took []float64) {
		v.t.Helper()
		must(v.t, (proto.TracingEnd{}).Call(v))
		wait()
		main := map[[2]int64]bool{}
		for _, e := range all {
			main[[2]int64{e.Pid, e.Tid}] = main[[2]int64{e.Pid, e.Tid}] || e.Name == "thread_name" && e.Args.Name == "CrRendererMain"
		}
		for _, e := range all {
			if e.Name == "RunTask" && e.Ph == "X" && main[[2]int64{e.Pid, e.Tid}] {
				took = append(took, e.Tdur/1000)
			}
		}
		return took
	}
}

func (v *view) wait(check func() error) {
	v.t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			v.t.Fatal(err)
		}
	}
}

// row returns the cells that the table shows of a resource; nil if it is not in sight.
func (v *view) row(resource string) (cells []string) {
	v.t.Helper()
	v.eval(&cells, `(r) => { const th = [...document.querySelectorAll('concord-matrix tbody th')].find((e) => e.textContent === r); return th ? [...th.parentElement.children].map((c) => c.textContent) : null; }`, resource)
	return cells
}

func (v *view) screenshot(name string) {
	v.t.Helper()
	if *screenshots == "" {
		return
	}
	picture, err := v.Screenshot(false, &proto.PageCaptureScreenshot{Format: proto.PageCaptureScreenshotFormatPng})
	must(v.t, err)
	must(v.t, os.WriteFile(filepath.Join(*screenshots, name), paletted(v.t, picture), 0o600))
}

// paletted returns a picture in its 256 most frequent colours, which is a third of the size.
func paletted(t *testing.T, text []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(text))
	must(t, err)
	often, bounds := map[color.Color]int{}, full.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			often[full.At(x, y)]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(often), func(a, b color.Color) int { return often[b] - often[a] })
	small := image.NewPaletted(bounds, colors[:min(256, len(colors))])
	nearest := map[color.Color]uint8{}
	for c := range often {
		nearest[c] = uint8(small.Palette.Index(c))
	}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			small.SetColorIndex(x, y, nearest[full.At(x, y)])
		}
	}
	var out bytes.Buffer
	must(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small))
	return out.Bytes()
}
