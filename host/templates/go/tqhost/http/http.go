// Package http lets net/http make requests through the host. Import it for its effect, and use net/http:
//
//	import _ "example.com/{{MODULE}}/tqhost/http"
//
// The host's configuration grants the targets (`allowed_hosts`), and bounds times and sizes (`http`). After a
// failed request, or a response with status 429 or 5xx, an error that nobody expected is a retry instead of a
// trap. Requests of several goroutines run at the same time, as each is sent before any is waited for.
//
// In a build that is not WebAssembly, net/http is as always.
package http

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter is how long a server asks to wait, for Failure.After. It is 0 if the server does not say.
func RetryAfter(response *http.Response) time.Duration {
	value := strings.TrimSpace(response.Header.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	// A date is compared with the server's own clock, if the response tells it.
	now, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(0, until.Sub(now))
}
