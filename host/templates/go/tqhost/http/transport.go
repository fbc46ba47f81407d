//go:build !wasip1

package http

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"

	"example.com/{{MODULE}}/tqhost"
)

// This file lets unit tests see failures of requests as the host tells them.

func init() { http.DefaultTransport = &transport{network: http.DefaultTransport} }

type transport struct {
	network http.RoundTripper
	noting  sync.Mutex
}

// RoundTrip sends a request to the network of this machine.
func (to *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := to.network.RoundTrip(request)
	if err != nil && !errors.Is(err, context.Canceled) {
		code := "connection-terminated"
		var slow net.Error
		if errors.As(err, &slow) && slow.Timeout() {
			code = "HTTP-response-timeout"
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			code = "connection-refused"
		}
		why := "the request to " + request.URL.Host + " failed: " + code
		response, err = nil, &tqhost.HTTPError{Code: code, Why: why}
	}
	to.noting.Lock()
	defer to.noting.Unlock()
	return noted(response, err)
}
