// Package tqhost connects a handler to its host: it reads fields, reports failures, converts results, and has
// the functions of the interface in wit/.
//
// In WebAssembly these call the host. In every other build there is a host in memory, for unit tests.
package tqhost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

var (
	handler   func(*Task) (any, error)
	selfCheck func() error
)

// Handle sets the handler's function. Call it in `init`, because `main` is not called.
//
// The function returns nil for no result, text, bytes, or a value that JSON can represent. With an error that
// is a Failure, or wraps one, the task ends as the failure says. Any other error is a bug, like a panic: the
// attempt ends as a trap with the error's text, the task is tried again, and the trap counts against this
// version. After a request that failed outside, such an error is a retry instead.
func Handle(function func(*Task) (any, error)) {
	handler = function
}

// SelfCheck sets a function that the host calls once on each new version, before the version gets tasks. With
// an error, the old version stays.
func SelfCheck(function func() error) {
	selfCheck = function
}

// The answer of services during this attempt.
var outside struct {
	failed, down bool
	after        time.Duration
}

// FailedOutside notes that something outside failed, and whether it is down. Then an error that nobody
// expected is a retry in this attempt, and not a trap. After 0, the queue's backoff says when.
func FailedOutside(down bool, after time.Duration) {
	outside.failed, outside.down, outside.after = true, down, after
}

// attempt runs the handler on one task.
func attempt(task *Task, function func(*Task) (any, error)) (result []byte, has bool, failure *Failure) {
	FailedOutside(false, 0)
	outside.failed = false
	defer func() {
		// A panic that is not recovered here ends the instance. The runtime prints it with its stack.
		if outside.failed {
			if reason := recover(); reason != nil {
				result, has, failure = nil, false, later(fmt.Sprint("panic: ", reason))
			}
		}
	}()
	if function == nil {
		panic("no handler: call tqhost.Handle in init")
	}
	value, err := function(task)
	if err == nil {
		result, has, err = encoded(value)
	}
	if err == nil {
		return result, has, nil
	}
	if failure := failureOf(err); failure != nil {
		return nil, false, failure
	}
	if outside.failed {
		return nil, false, later(described(err))
	}
	panic(err)
}

func later(why string) *Failure {
	failure := Retry(why)
	failure.outage = outside.down
	return failure.After(outside.after)
}

// encoded converts a result, or a value of a field, to bytes.
func encoded(value any) (result []byte, has bool, err error) {
	switch value := value.(type) {
	case nil:
		return nil, false, nil
	case []byte:
		return value, true, nil
	case string:
		return []byte(value), true, nil
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, false, fmt.Errorf("the result: %w", err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), true, nil
}

// Config returns the value that the host's configuration grants this plugin under this key.
func Config(key string) (value string, granted bool) {
	return hostConfig(key)
}

// Progress is shown on the task's status while it runs.
func Progress(percent int, note string) {
	hostProgress(uint32(min(max(percent, 0), 100)), note)
}

// Remaining is the time until the host stops this attempt.
func Remaining() time.Duration {
	return hostRemaining()
}
