package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// Client sends requests to one server as its administrator. It retries nothing.
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

// Client returns a client with connections of its own.
func (s *Server) Client() (*Client, error) {
	config, err := s.Config()
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", s.name, err)
	}
	return &Client{http: client, base: config.Host}, nil
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
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		return nil, &StatusError{Code: response.StatusCode, Message: message(answer)}
	}
	return answer, nil
}

// message returns the message of a Status, or the body itself where it is none.
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
func (c *Client) Close() { c.http.CloseIdleConnections() }
