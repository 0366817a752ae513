package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// Client sends requests to one server. It retries nothing.
type Client struct {
	http *http.Client
	base string
}

// StatusError is an answer other than 2xx.
type StatusError struct {
	Code    int
	Message string
}

func (e *StatusError) Error() string { return fmt.Sprintf("%d: %s", e.Code, e.Message) }

// NewClient returns a client.
func NewClient(config *rest.Config) (*Client, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", config.Host, err)
	}
	return &Client{http: client, base: config.Host}, nil
}

// Get requests a path. An answer of any status is returned without an error; err says that
// there was no answer.
func Get(ctx context.Context, config *rest.Config, path string, header http.Header) (status int, body string, err error) {
	c, err := NewClient(config)
	if err != nil {
		return 0, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return 0, "", err
	}
	if header != nil {
		request.Header = header
	}
	status, answer, err := c.send(request)
	return status, string(answer), err
}

func (c *Client) send(request *http.Request) (status int, body []byte, err error) {
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// Do sends a request and returns the body of the answer. The error is a *StatusError
// unless the answer is 2xx.
func (c *Client) Do(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	status, answer, err := c.send(request)
	if err != nil {
		return nil, err
	}
	if status/100 != 2 {
		return nil, &StatusError{Code: status, Message: message(answer)}
	}
	return answer, nil
}

// message returns the message of a Status, or the body itself if it is not a Status.
func message(body []byte) string {
	var status struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return status.Message
	}
	return string(body)
}

// Close closes the connections that are idle.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }
