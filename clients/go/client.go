// Package tqhost is a producer's client for tqhost, on go-redis, redigo, or any other client of Redis.
//
// In: a function that sends a command, and the name of a queue's stream. Out: tasks by plain XADD, their
// statuses, waits that end, cancels through the HTTP API, and webhooks of http-call that are checked. Not
// here: handlers, and what only hosts write.
package tqhost

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	maxFields    = 1000
	maxTaskBytes = 16 << 20
	maxIDBytes   = 256
	maxDelay     = 365 * 24 * time.Hour
	// Redis does not announce changes of a status, so a wait looks a few times a second.
	period      = 250 * time.Millisecond
	httpTimeout = 30 * time.Second
	maxAnswer   = 1 << 20
)

var (
	entryID = regexp.MustCompile(`^[0-9]{1,19}-[0-9]{1,19}$`)
	trace   = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-[!-@\[-~]*)?$`)
)

// Errors to compare with errors.Is. Errors of Redis come as its client returns them.
var (
	// ErrNotATask: no host would take such a task. Nothing was written.
	ErrNotATask = errors.New("not a task")
	// ErrQueueFull: as many tasks as MaxBacklog wait or run. Nothing was written.
	ErrQueueFull = errors.New("queue full")
	// ErrNotEnded: the task has not ended within the time of the context. It goes on.
	ErrNotEnded = errors.New("not ended")
	// ErrBadWebhook: the request is not one of http-call. Answer 401.
	ErrBadWebhook = errors.New("bad webhook")
	// ErrBadSecret: nothing can be checked with this secret.
	ErrBadSecret = errors.New("the secret is not whsec_ and 24 to 64 bytes in base64")
)

// told is an error of one of these kinds, in words of its own.
type told struct {
	kind error
	text string
}

func (e *told) Error() string { return e.text }
func (e *told) Unwrap() error { return e.kind }

func tell(kind error, format string, args ...any) error {
	return &told{kind, fmt.Sprintf(format, args...)}
}

// APIError is what the HTTP API refuses; Code is one of docs/api.md, such as unknown-task or task-ended.
type APIError struct {
	HTTPStatus   int
	Code, Detail string
}

func (e *APIError) Error() string { return fmt.Sprintf("%s (%d): %s", e.Code, e.HTTPStatus, e.Detail) }

// Do sends a command and returns its reply: strings as string or []byte, numbers as int64, lists as []any.
type Do func(ctx context.Context, args ...any) (any, error)

// Queue is a queue, by the name of its stream.
type Queue struct {
	Do     Do
	Stream string
	// MaxBacklog is that of the queue's configuration. 0: no task is refused.
	MaxBacklog int64
}

// Field is a field of a task. Its value is any bytes.
type Field struct {
	Name  string
	Value []byte
}

// Options of a task; the zero value has none. Each pointer is nil where the task has no such option.
type Options struct {
	// ID is the task's id, at most 256 bytes; without it, that of its entry.
	ID, Key, Traceparent *string
	Delay                time.Duration
}

// Status has the fields of docs/status.md. UNKNOWN: the id is not known, or not yet, or not any more. Times
// are milliseconds since the Unix epoch; 0 and "" stand for what is not there.
type Status struct {
	ID, Status                                        string
	Attempt, EnqueuedAt, DueAt, StartedAt, FinishedAt int64
	Progress                                          *int64
	Note, Error, DuplicateOf                          string
	Result                                            []byte
}

// HasEnded says whether nothing follows by itself.
func (s Status) HasEnded() bool {
	return s.Status == "COMPLETED" || s.Status == "FAILED" || s.Status == "CANCELLED"
}

// entry has the names and values of the task's entry, by the rules of `tqhost enqueue`.
func entry(fields []Field, o Options) ([]any, error) {
	size, hasTrace := 0, false
	var entry []any
	for _, field := range fields {
		for _, prefix := range []string{"tq-", "end."} {
			if strings.HasPrefix(field.Name, prefix) {
				return nil, tell(ErrNotATask, "field `%s`: names that start with `%s` are reserved for tqhost",
					field.Name, prefix)
			}
		}
		size += len(field.Name) + len(field.Value)
		hasTrace = hasTrace || field.Name == "traceparent"
		entry = append(entry, field.Name, field.Value)
	}
	switch {
	case len(fields) == 0:
		return nil, tell(ErrNotATask, "a task needs at least one field")
	case len(fields) > maxFields:
		return nil, tell(ErrNotATask, "a task has at most %d fields, this one has %d", maxFields, len(fields))
	case size > maxTaskBytes:
		return nil, tell(ErrNotATask, "a task has at most %d bytes (16MiB), this one has %d: "+
			"keep large data in blobs", maxTaskBytes, size)
	case o.Delay > maxDelay:
		return nil, tell(ErrNotATask, "a delay is 365d at most")
	case o.Key != nil && *o.Key == "":
		return nil, tell(ErrNotATask, "an idempotency key has at least one byte, this one is empty")
	case o.ID != nil && (len(*o.ID) < 1 || len(*o.ID) > maxIDBytes):
		return nil, tell(ErrNotATask, "a task's id has 1 to %d bytes, this one has %d", maxIDBytes, len(*o.ID))
	case o.Traceparent != nil && !isTrace(*o.Traceparent):
		return nil, tell(ErrNotATask, "not a W3C trace context: write it like "+
			"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	}
	// As with `tqhost enqueue`: the task's own trace context stays, and a full task gets none.
	if o.Traceparent != nil && !hasTrace && len(fields) < maxFields {
		entry = append(entry, "traceparent", *o.Traceparent)
	}
	if o.ID != nil {
		entry = append(entry, "tq-id", *o.ID)
	}
	if o.Key != nil {
		entry = append(entry, "tq-key", *o.Key)
	}
	if o.Delay > 0 {
		// A part of a millisecond counts as a whole one.
		delay := (o.Delay + time.Millisecond - 1) / time.Millisecond
		entry = append(entry, "tq-delay-ms", strconv.FormatInt(int64(delay), 10))
	}
	return entry, nil
}

// isTrace says whether this is a trace context of W3C: version 00, or a later one, which may append to it.
func isTrace(text string) bool {
	parts := trace.FindStringSubmatch(text)
	isZero := func(part string) bool { return strings.Trim(part, "0") == "" }
	if parts == nil || len(text) > 256 || parts[1] == "ff" || isZero(parts[2]) || isZero(parts[3]) {
		return false
	}
	return (parts[1] == "00") == (parts[4] == "")
}

// base begins the names of the queue's other keys. A stream's own hash tag is theirs, too.
func (q Queue) base() string {
	if strings.Contains(q.Stream, "{") {
		return "tq:" + q.Stream
	}
	return "tq:{" + q.Stream + "}"
}

// backlog counts the tasks that wait, run, or are delayed.
func (q Queue) backlog(ctx context.Context) (int64, error) {
	var tasks int64
	for _, command := range [][]any{{"XLEN", q.Stream}, {"ZCARD", q.base() + ":delayed"}} {
		reply, err := q.Do(ctx, command...)
		if err != nil {
			return 0, err
		}
		count, isNumber := reply.(int64)
		if !isNumber {
			return 0, fmt.Errorf("%v: the reply %T is no int64", command[0], reply)
		}
		tasks += count
	}
	return tasks, nil
}

// Enqueue adds a task, and returns its id: the given one, or that of its entry.
func (q Queue) Enqueue(ctx context.Context, fields []Field, options Options) (string, error) {
	entry, err := entry(fields, options)
	if err != nil {
		return "", err
	}
	if q.MaxBacklog > 0 {
		tasks, err := q.backlog(ctx)
		if err != nil {
			return "", err
		}
		if tasks >= q.MaxBacklog {
			return "", tell(ErrQueueFull, "the queue of %s is full: %d tasks or more wait or run (max_backlog); "+
				"try again later, or raise it", q.Stream, q.MaxBacklog)
		}
	}
	added, err := q.Do(ctx, append([]any{"XADD", q.Stream, "*"}, entry...)...)
	if err != nil {
		return "", err
	}
	if options.ID != nil {
		return *options.ID, nil
	}
	return string(asBytes(added)), nil
}

func asBytes(reply any) []byte {
	switch reply := reply.(type) {
	case string:
		return []byte(reply)
	case []byte:
		return reply
	}
	return nil
}

// Status reads the status of a task.
func (q Queue) Status(ctx context.Context, id string) (Status, error) {
	values, err := q.read(ctx, id)
	// A task that waits for its first host has no status, but an entry. One that left its entry between these
	// two commands has a status now.
	if err == nil && values[0] == nil && entryID.MatchString(id) {
		var entries any
		entries, err = q.Do(ctx, "XRANGE", q.Stream, id, id)
		if list, _ := entries.([]any); err == nil && len(list) > 0 {
			return Status{ID: id, Status: "PENDING"}, nil
		}
		if err == nil {
			values, err = q.read(ctx, id)
		}
	}
	if err != nil || values[0] == nil {
		return Status{ID: id, Status: "UNKNOWN"}, err
	}
	text := func(n int) string { return strings.ToValidUTF8(string(asBytes(values[n])), "\uFFFD") }
	number := func(n int) (number int64) {
		if values[n] != nil && err == nil {
			number, err = strconv.ParseInt(text(n), 10, 64)
		}
		return number
	}
	status := Status{ID: id, Status: text(0), Attempt: number(1), EnqueuedAt: number(2), DueAt: number(3),
		StartedAt: number(4), FinishedAt: number(5), Note: text(7), Error: text(8), DuplicateOf: text(9),
		Result: asBytes(values[10])}
	if values[6] != nil {
		progress := number(6)
		status.Progress = &progress
	}
	return status, err
}

func (q Queue) read(ctx context.Context, id string) ([]any, error) {
	reply, err := q.Do(ctx, "HMGET", q.base()+":task:"+id, "status", "attempt", "enqueued_at", "due_at",
		"started_at", "finished_at", "progress", "note", "error", "duplicate_of", "result")
	values, isList := reply.([]any)
	if err == nil && (!isList || len(values) != 11) {
		err = fmt.Errorf("HMGET: the reply %T is no list of 11", reply)
	}
	return values, err
}

// Wait returns the status after the task's end, however it ended. After the timeout it returns the last
// status, and ErrNotEnded.
func (q Queue) Wait(ctx context.Context, id string, timeout time.Duration) (Status, error) {
	end := time.Now().Add(timeout)
	for {
		status, err := q.Status(ctx, id)
		if err != nil || status.HasEnded() {
			return status, err
		}
		left := time.Until(end)
		if left <= 0 {
			return status, tell(ErrNotEnded, "not ended after %v: %s is %s", timeout, id, status.Status)
		}
		select {
		case <-ctx.Done():
			return status, ctx.Err()
		case <-time.After(min(period, left)):
		}
	}
}

// Cancel cancels a task through the HTTP API, since only hosts may end tasks. It returns the status that the
// task had. api is a host's address, such as http://127.0.0.1:7700; queue the name in the configuration; the
// token may be empty.
func Cancel(ctx context.Context, api, queue, id, token string) (string, error) {
	ctx, done := context.WithTimeout(ctx, httpTimeout)
	defer done()
	path := "/v1/queues/" + url.PathEscape(queue) + "/tasks/" + url.PathEscape(id)
	address := strings.TrimRight(api, "/") + path
	request, err := http.NewRequestWithContext(ctx, http.MethodDelete, address, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var body struct{ Before, Code, Detail string }
	read := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&body)
	switch {
	case read == nil && answer.StatusCode == http.StatusOK:
		return body.Before, nil
	case read == nil && body.Code != "":
		return "", &APIError{answer.StatusCode, body.Code, body.Detail}
	}
	return "", &APIError{answer.StatusCode, "unreadable", "the answer is not one of tqhost"}
}

// VerifyWebhook checks a request of http-call (Standard Webhooks), and returns its webhook-id. body is the
// bytes as they came. The request's time may be as far away from now as tolerance says, usually five minutes.
func VerifyWebhook(
	secret string, header http.Header, body []byte, now time.Time, tolerance time.Duration,
) (string, error) {
	key, err := base64.StdEncoding.Strict().DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil || len(key) < 24 || len(key) > 64 {
		return "", ErrBadSecret
	}
	id, stamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	signatures := header.Get("webhook-signature")
	seconds, err := strconv.ParseUint(stamp, 10, 63)
	switch {
	case id == "" || stamp == "" || signatures == "":
		return "", tell(ErrBadWebhook, "webhook-id, webhook-timestamp or webhook-signature is missing")
	case err != nil || len(stamp) > 15:
		return "", tell(ErrBadWebhook, "webhook-timestamp is not a number")
	case now.Sub(time.Unix(int64(seconds), 0)).Abs() > tolerance:
		return "", tell(ErrBadWebhook, "webhook-timestamp is too old or too new")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + stamp + "."))
	mac.Write(body)
	own := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	// Each signature is compared, whichever is equal.
	isEqual := false
	for _, signature := range strings.Split(signatures, " ") {
		isEqual = hmac.Equal([]byte(signature), own) || isEqual
	}
	if !isEqual {
		return "", tell(ErrBadWebhook, "no signature matches")
	}
	return id, nil
}
