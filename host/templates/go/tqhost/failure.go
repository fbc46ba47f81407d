package tqhost

import (
	"errors"
	"net/url"
	"time"
)

type kind uint8

// In the order of the interface.
const (
	kindRetry kind = iota
	kindReject
	kindDefer
)

// Failure is an error that says what becomes of the task. A handler returns it, also wrapped by others.
type Failure struct {
	kind    kind
	message string
	after   time.Duration
	// Whether `after` was chosen.
	timed bool
	// Whether a service outside is down.
	outage bool
}

func (failure *Failure) Error() string { return failure.message }

// Reject makes a failure of a task that can never work: it is dead-lettered at once.
func Reject(why string) *Failure { return &Failure{kind: kindReject, message: why} }

// Retry makes a failure of a task that may work later. The queue's backoff says when, unless After does.
func Retry(why string) *Failure { return &Failure{kind: kindRetry, message: why} }

// Unavailable makes a failure of a task that found a service down: it refused the connection, did not answer
// in time, or asks to be called later. It is a retry that says nothing about this version, and a queue with a
// `hold` waits for the service and does not charge the attempt.
func Unavailable(why string) *Failure {
	failure := Retry(why)
	failure.outage = true
	return failure
}

// After sets when the task is tried again: in a day at most, and in a week after a deferral. With 0, the
// queue's backoff says when.
func (failure *Failure) After(wait time.Duration) *Failure {
	failure.after, failure.timed = max(0, wait), wait > 0
	return failure
}

// Defer makes a failure of a task that is too early: it comes back later, and no attempt is used.
func Defer(why string, wait time.Duration) *Failure {
	return &Failure{kind: kindDefer, message: why, after: max(0, wait), timed: true}
}

// EffectError says why a call was refused; it has no effect then. If a handler returns it, the task is
// retried when Redis or the store was unavailable, and otherwise rejected.
type EffectError struct {
	// Code is `unknown-queue`, `not-permitted`, `too-large`, `invalid-name`, `not-found` or `unavailable`.
	Code string
	why  string
}

func (err *EffectError) Error() string { return err.why }

func (err *EffectError) failure() *Failure {
	if err.Code == "unavailable" {
		return Retry(err.why)
	}
	return Reject(err.why)
}

// HTTPError says why there is no response. Its text names the host of the URL, but no path, header or body.
// If a handler returns it, also wrapped, the task is retried, or rejected where the same error would happen
// again.
type HTTPError struct {
	// Code is one of wasi:http's error-code (`HTTP-request-denied`, `connection-refused`, …) or header-error.
	Code string
	Why  string
	// Answered says whether the answer had begun.
	Answered bool
}

func (err *HTTPError) Error() string { return err.Why }

// Timeout tells net/http that the request took too long.
func (err *HTTPError) Timeout() bool { return err.Code == "HTTP-response-timeout" }

func (err *HTTPError) failure() *Failure {
	switch err.Code {
	case "HTTP-request-URI-invalid", "HTTP-request-method-invalid", "HTTP-request-body-size",
		"HTTP-response-body-size", "forbidden", "invalid-syntax":
		return Reject(err.Why)
	}
	if err.Unreachable() {
		return Unavailable(err.Why)
	}
	return Retry(err.Why)
}

// Unreachable says whether the server does not answer at all, or not in time.
func (err *HTTPError) Unreachable() bool {
	switch err.Code {
	case "DNS-error", "DNS-timeout", "destination-not-found", "destination-unavailable",
		"destination-IP-unroutable", "TLS-protocol-error", "TLS-certificate-error", "TLS-alert-received",
		"configuration-error", "connection-refused", "connection-timeout", "connection-read-timeout",
		"connection-write-timeout", "HTTP-response-timeout":
		return true
	case "connection-terminated", "HTTP-response-incomplete":
		return !err.Answered
	}
	return false
}

// failureOf finds the failure in an error and in what it wraps. It is nil for an error that nobody expected.
func failureOf(err error) *Failure {
	var failure *Failure
	if errors.As(err, &failure) {
		return failure
	}
	var known interface {
		error
		failure() *Failure
	}
	if errors.As(err, &known) {
		return known.failure()
	}
	return nil
}

// described is an error's text, without the address in it, which may have a secret.
func described(err error) string {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err.Error()
	}
	return err.Error()
}
