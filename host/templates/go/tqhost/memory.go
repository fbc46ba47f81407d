//go:build !wasip1

package tqhost

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"
	"time"
)

// This file stands in for the host in unit tests. It grants every queue and key, and has no limits.

// Memory is what the host in memory has. A test fills it and reads it.
var Memory = struct {
	Config map[string]string
	// Sent has the tasks that were enqueued, flows included.
	Sent []NewTask
	// State has the values of the plugin, Records the hashes of the team, and Blobs the files.
	State   map[string][]byte
	Records map[string]map[string][]byte
	Blobs   map[string][]byte
	// Results are those of a flow, for FlowResults.
	Results []ChildResult
	Fence   uint64
}{
	Config:  map[string]string{},
	State:   map[string][]byte{},
	Records: map[string]map[string][]byte{},
	Blobs:   map[string][]byte{},
	Fence:   1,
}

// Run runs one attempt of a function like a host. If it fails, its effects are dropped, and the error is a
// Failure.
func Run(function func(*Task) (any, error), fields Fields) ([]byte, error) {
	lowered, err := fields.lowered()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	task := &Task{
		ID: "task-1", Queue: "queue", Fields: lowered, Attempt: 1, MaxAttempts: 3, EnqueuedAt: now,
		Deadline: now.Add(time.Minute),
	}
	return RunTask(function, task)
}

// RunTask runs one attempt of this task.
func RunTask(function func(*Task) (any, error), task *Task) ([]byte, error) {
	sent, state := len(Memory.Sent), maps.Clone(Memory.State)
	records := map[string]map[string][]byte{}
	for key, fields := range Memory.Records {
		records[key] = maps.Clone(fields)
	}
	result, _, failure := attempt(task, function)
	if failure != nil {
		Memory.Sent, Memory.State, Memory.Records = Memory.Sent[:sent], state, records
		return nil, failure
	}
	return result, nil
}

// Wait says when the failure wants the task to be tried again, if it says so.
func (failure *Failure) Wait() (wait time.Duration, chosen bool) { return failure.after, failure.timed }

// IsUnavailable says whether the failure blames a service outside.
func (failure *Failure) IsUnavailable() bool { return failure.outage }

// IsRejection says whether the task is dead with this failure.
func (failure *Failure) IsRejection() bool { return failure.kind == kindReject }

func hostRemaining() time.Duration { return time.Minute }

func hostProgress(percent uint32, note string) {
	fmt.Fprintf(os.Stderr, "progress %d%% %s\n", percent, note)
}

func hostConfig(key string) (string, bool) {
	value, has := Memory.Config[key]
	return value, has
}

func raised(task loweredTask) NewTask {
	fields := Fields{}
	for _, field := range task.fields {
		fields[field.Name] = string(field.Value)
	}
	delay := time.Duration(task.delayMS) * time.Millisecond
	return NewTask{Queue: task.queue, Fields: fields, Delay: delay, IdempotencyKey: task.key}
}

func hostEnqueue(task loweredTask) (string, error) {
	Memory.Sent = append(Memory.Sent, raised(task))
	return fmt.Sprintf("sent-%d", len(Memory.Sent)), nil
}

func hostFanOut(children []loweredTask, then loweredTask) (string, error) {
	for _, child := range children {
		Memory.Sent = append(Memory.Sent, raised(child))
	}
	return hostEnqueue(then)
}

func hostFlowResults() []ChildResult { return Memory.Results }

func hostFence() uint64 { return Memory.Fence }

func hostStateGet(key string) ([]byte, error) { return Memory.State[key], nil }

func hostStateSet(key string, value []byte, _ uint64) error {
	Memory.State[key] = append([]byte{}, value...)
	return nil
}

func hostStateDelete(key string) error {
	delete(Memory.State, key)
	return nil
}

func hostStateIncrement(key string, delta int64) (int64, error) {
	var value int64
	if kept, has := Memory.State[key]; has {
		if err := json.Unmarshal(kept, &value); err != nil {
			return 0, &EffectError{"unavailable", "the value is not a whole number"}
		}
	}
	value += delta
	Memory.State[key] = strconv.AppendInt(nil, value, 10)
	return value, nil
}

func hostRecordsPut(key string, fields []Field) error {
	if Memory.Records[key] == nil {
		Memory.Records[key] = map[string][]byte{}
	}
	for _, field := range fields {
		Memory.Records[key][field.Name] = field.Value
	}
	return nil
}

func hostRecordsGet(key string) ([]Field, bool, error) {
	kept, has := Memory.Records[key]
	var fields []Field
	for name, value := range kept {
		fields = append(fields, Field{name, value})
	}
	return fields, has, nil
}

func hostRecordsDelete(key string) error {
	delete(Memory.Records, key)
	return nil
}

func hostRecordsExpire(string, uint64) error { return nil }

func hostBlobsPut(name, _ string, data []byte) (string, error) {
	Memory.Blobs[name] = append([]byte{}, data...)
	return "memory:///" + name, nil
}

func hostBlobsGet(name string) ([]byte, error) {
	data, has := Memory.Blobs[name]
	if !has {
		return nil, &EffectError{"not-found", fmt.Sprintf("there is no blob `%s`", name)}
	}
	return data, nil
}
