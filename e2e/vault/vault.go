// Package vault stands for a remote KMS in tests, with the plugins through which API servers reach it.
package vault

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"
)

// Vault is the remote KMS behind all plugins. It has a key for every ID with which a plugin has
// encrypted, until Destroy.
type Vault struct {
	mu   sync.Mutex
	keys map[string]cipher.AEAD
}

// NewVault returns a vault without keys.
func NewVault() *Vault { return &Vault{keys: map[string]cipher.AEAD{}} }

// Key returns the key of an ID, which is made if there is none yet and make is set.
func (v *Vault) Key(id string, make bool) (cipher.AEAD, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if key := v.keys[id]; key != nil || !make {
		if key == nil {
			return nil, fmt.Errorf("there is no key %s", id)
		}
		return key, nil
	}
	block, err := aes.NewCipher([]byte(rand.Text() + rand.Text())[:32])
	if err == nil {
		v.keys[id], err = cipher.NewGCMWithRandomNonce(block)
	}
	return v.keys[id], err
}

// Destroy forgets a key: all data encrypted with it is lost.
func (v *Vault) Destroy(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.keys, id)
}

// Plugin is one server's KMS plugin: a real gRPC server on a socket, which can go down and come
// up again.
type Plugin struct {
	t testing.TB
	// Vault has the plugin's keys.
	Vault *Vault
	// Path is the path of the plugin's socket.
	Path string

	mu     sync.Mutex
	id     string // of the key that it encrypts with
	server *grpc.Server
}

// Start starts a plugin that encrypts with the key of this ID. It ends with the test.
func Start(t testing.TB, v *Vault, id string) *Plugin {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &Plugin{t: t, Vault: v, Path: filepath.Join(dir, "s"), id: id}
	t.Cleanup(func() { p.Stop() })
	p.Start()
	return p
}

// Start makes the plugin serve, also again after Stop.
func (p *Plugin) Start() {
	p.t.Helper()
	listener, err := net.Listen("unix", p.Path)
	if err != nil {
		p.t.Fatal(err)
	}
	server := grpc.NewServer()
	kmsapi.RegisterKeyManagementServiceServer(server, service.NewGRPCService(p.Path, time.Second, p))
	p.mu.Lock()
	p.server = server
	p.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// Stop ends the plugin until it is started again.
func (p *Plugin) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.Stop()
}

// Turn makes the plugin encrypt with another key.
func (p *Plugin) Turn(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id = id
}

// Current is the ID of the key with which the plugin encrypts.
func (p *Plugin) Current() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// Status implements service.Service.
func (p *Plugin) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: p.Current()}, nil
}

// Encrypt implements service.Service.
func (p *Plugin) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	id := p.Current()
	key, err := p.Vault.Key(id, true)
	if err != nil {
		return nil, err
	}
	return &service.EncryptResponse{Ciphertext: key.Seal(nil, nil, data, nil), KeyID: id}, nil
}

// Decrypt implements service.Service.
func (p *Plugin) Decrypt(_ context.Context, _ string, request *service.DecryptRequest) ([]byte, error) {
	key, err := p.Vault.Key(request.KeyID, false)
	if err != nil {
		return nil, err
	}
	return key.Open(nil, nil, request.Ciphertext, nil)
}
