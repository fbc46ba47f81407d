// Package http lets net/http make requests through the host. Import it for its effect, and use net/http:
//
//	import _ "example.com/{{MODULE}}/tqhost/http"
//
// The host's configuration grants the targets (`allowed_hosts`), and bounds times and sizes (`http`). After a
// failed request, or a response with status 429 or 5xx, an error that nobody expected is a retry instead of a
// trap. Requests of several goroutines run at the same time, as each is sent before any is waited for.
//
// In a build that is not WebAssembly, for unit tests, requests go to the network of this machine, for example
// to a server of net/http/httptest.
package http

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/{{MODULE}}/tqhost"
)

// longest is far more than the host waits. It leaves room for rounding up.
const longest = math.MaxInt64/time.Second*time.Second - time.Second

// noted tells what failed outside during this attempt.
func noted(response *http.Response, err error) (*http.Response, error) {
	var failure *tqhost.HTTPError
	if errors.As(err, &failure) {
		note(failure)
	}
	if err == nil && (response.StatusCode == 429 || response.StatusCode >= 500) {
		down := response.StatusCode == 429 || response.StatusCode == 503
		tqhost.FailedOutside(down, RetryAfter(response))
	}
	return response, err
}

// note tells that something outside failed, unless the host refused the request or it cannot be sent.
func note(failure *tqhost.HTTPError) {
	switch failure.Code {
	case "HTTP-request-URI-invalid", "HTTP-request-method-invalid", "HTTP-request-body-size",
		"HTTP-response-body-size", "forbidden", "invalid-syntax", "HTTP-request-denied",
		"destination-IP-prohibited":
	default:
		tqhost.FailedOutside(failure.Unreachable(), 0)
	}
}

// RetryAfter is how long a server asks to wait, for Failure.After. It is 0 if the server does not say.
func RetryAfter(response *http.Response) time.Duration {
	value := strings.TrimSpace(response.Header.Get("Retry-After"))
	if wait, is := seconds(value); is {
		return wait
	}
	until, err := parseTime(value)
	if err != nil {
		return 0
	}
	// A date is compared with the server's own clock, if the response tells it.
	now, err := parseTime(strings.TrimSpace(response.Header.Get("Date")))
	if err != nil {
		now = time.Now()
	}
	return min(max(0, until.Sub(now)), longest)
}

// seconds reads whole seconds, or some with a fraction, which is rounded up. What is longer than any time is
// the longest one.
func seconds(value string) (time.Duration, bool) {
	whole, fraction, isSplit := strings.Cut(value, ".")
	if !areDigits(whole) || isSplit && !areDigits(fraction) {
		return 0, false
	}
	count, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || count >= int64(longest/time.Second) {
		return longest, true
	}
	if strings.Trim(fraction, "0") != "" {
		count++
	}
	return time.Duration(count) * time.Second, true
}

func areDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

// parseTime reads a date of HTTP. Some servers write the offset of GMT in place of its name.
func parseTime(text string) (time.Time, error) {
	for _, offset := range []string{"+0000", "UTC"} {
		if date, is := strings.CutSuffix(text, offset); is {
			text = date + "GMT"
		}
	}
	return http.ParseTime(text)
}
