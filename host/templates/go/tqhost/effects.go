package tqhost

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Fields are the fields of a task or of a record by their names: text, bytes, or values that become JSON.
type Fields map[string]any

// NewTask is a task for another queue.
type NewTask struct {
	// Queue is the queue's name in the host's configuration, which grants it by `enqueue_to`.
	Queue  string
	Fields Fields
	// Delay is the time from the commit until the task may run.
	Delay time.Duration
	// IdempotencyKey, unless it is empty: a second task with this key is not enqueued.
	IdempotencyKey string
}

// ChildResult is the result of a task of a flow.
type ChildResult struct {
	TaskID string
	Queue  string
	// Value is nil if the child had no result.
	Value []byte
}

// JSON reads a child's result into the value that `into` points to.
func (child ChildResult) JSON(into any) error {
	if err := json.Unmarshal(child.Value, into); err != nil {
		return Reject(fmt.Sprintf("the result of task %s in queue `%s` is not JSON as expected: %v",
			child.TaskID, child.Queue, err))
	}
	return nil
}

// Enqueue enqueues a task in the step that completes this one, or never. It returns the id that the task
// will have.
func Enqueue(task NewTask) (id string, err error) {
	lowered, err := task.lowered()
	if err != nil {
		return "", err
	}
	return hostEnqueue(lowered)
}

// FanOut enqueues `children`, and `then` once when every child has completed. It returns the id of `then`. If
// a child becomes a dead letter, `then` does so, too.
func FanOut(children []NewTask, then NewTask) (id string, err error) {
	tasks := make([]loweredTask, len(children))
	for index, child := range children {
		if tasks[index], err = child.lowered(); err != nil {
			return "", err
		}
	}
	last, err := then.lowered()
	if err != nil {
		return "", err
	}
	return hostFanOut(tasks, last)
}

// FlowResults returns the results of a flow in the order of its children, for the task that joins it.
func FlowResults() []ChildResult {
	return hostFlowResults()
}

// Fence is a number that grows with every delivery of the task. Send it along with effects outside tqhost,
// and let the service refuse a number lower than one that it has seen for this task.
func Fence() uint64 {
	return hostFence()
}

// State holds values of the plugin that outlive its tasks. What an attempt writes is seen by this attempt at
// once, and by everyone else in the step that completes the task, or never. A key has 1 to 512 bytes.
var State state

type state struct{}

// Get returns nil for a key that is not there.
func (state) Get(key string) ([]byte, error) { return hostStateGet(key) }

// Set keeps text, bytes, or a value as JSON, until it is deleted or, if `ttl` is not 0, for this time.
func (state) Set(key string, value any, ttl time.Duration) error {
	content, _, err := encoded(value)
	if err != nil {
		return err
	}
	return hostStateSet(key, content, millis(ttl))
}

func (state) Delete(key string) error { return hostStateDelete(key) }

// Increment adds to a whole number, which begins at 0, and returns the value that this attempt sees.
func (state) Increment(key string, delta int64) (int64, error) { return hostStateIncrement(key, delta) }

// Records are Redis hashes under the team's own keys. The plugin's `records` grants patterns of keys.
var Records records

type records struct{}

// Put sets fields, and leaves the other fields as they are.
func (records) Put(key string, fields Fields) error {
	lowered, err := fields.lowered()
	if err != nil {
		return err
	}
	return hostRecordsPut(key, lowered)
}

// Get returns nil for a key that is not there.
func (records) Get(key string) (map[string][]byte, error) {
	fields, has, err := hostRecordsGet(key)
	if err != nil || !has {
		return nil, err
	}
	found := make(map[string][]byte, len(fields))
	for _, field := range fields {
		found[field.Name] = field.Value
	}
	return found, nil
}

func (records) Delete(key string) error { return hostRecordsDelete(key) }

// Expire deletes the hash after this time, counted from the commit. 0 keeps it.
func (records) Expire(key string, ttl time.Duration) error { return hostRecordsExpire(key, millis(ttl)) }

// Blobs are files in the plugin's part of an object store. They are written at once: name them by task id.
var Blobs blobs

type blobs struct{}

// Put returns the blob's URL.
func (blobs) Put(name, contentType string, data []byte) (url string, err error) {
	return hostBlobsPut(name, contentType, data)
}

// Get fails with the code `not-found` if there is no such blob.
func (blobs) Get(name string) ([]byte, error) { return hostBlobsGet(name) }

type loweredTask struct {
	queue   string
	fields  []Field
	delayMS uint64
	key     string
}

func (task NewTask) lowered() (loweredTask, error) {
	fields, err := task.Fields.lowered()
	return loweredTask{task.Queue, fields, millis(task.Delay), task.IdempotencyKey}, err
}

func (fields Fields) lowered() ([]Field, error) {
	lowered := make([]Field, 0, len(fields))
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value, _, err := encoded(fields[name])
		if err != nil {
			return nil, fmt.Errorf("field `%s`: %w", name, err)
		}
		lowered = append(lowered, Field{name, value})
	}
	return lowered, nil
}

// millis never makes 0 of a short time, because 0 means something else to the host.
func millis(duration time.Duration) uint64 {
	return uint64(max(0, (duration+time.Millisecond-1)/time.Millisecond))
}
