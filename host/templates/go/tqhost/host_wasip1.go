package tqhost

import (
	"context"
	"encoding/binary"
	"log/slog"
	"strings"
	"time"
)

// This file has the functions of the interface: what the host calls, and what calls the host.

// The result of the last call, which the host reads after the call.
var returned *area

//go:wasmexport tqhost:handler/handler@0.1.0#handle
func exportHandle(
	id, idLength, queue, queueLength, fields, fieldCount, attemptNumber, maxAttempts uint32,
	enqueuedAt, deadline uint64, isTraced, trace, traceLength uint32,
) uint32 {
	wake()
	defer rest()
	task := &Task{
		ID:          string(take(id, idLength)),
		Queue:       string(take(queue, queueLength)),
		Fields:      fieldsIn(fields, fieldCount),
		Attempt:     int(attemptNumber),
		MaxAttempts: int(maxAttempts),
		EnqueuedAt:  time.UnixMilli(int64(enqueuedAt)),
		Deadline:    time.UnixMilli(int64(deadline)),
	}
	if isTraced != 0 {
		task.Traceparent = string(take(trace, traceLength))
	}
	result, has, failure := attempt(task, handler)
	clear(given)
	forget()
	if failure != nil && failure.outage {
		outageUnavailable(0, failure.timed, millis(failure.after))
	}
	returned = newArea()
	at := returned.bytes()
	switch {
	case failure == nil && has:
		at[8] = 1
		returned.setList(12, result)
	case failure != nil:
		at[0], at[8] = 1, byte(failure.kind)
		returned.setList(16, []byte(failure.message))
		if failure.kind == kindDefer {
			returned.setU64(24, millis(failure.after))
		} else if failure.timed {
			at[24] = 1
			returned.setU64(32, millis(failure.after))
		}
	}
	return addressOfArea(returned)
}

//go:wasmexport tqhost:handler/lifecycle@0.1.0#self-check
func exportSelfCheck() uint32 {
	wake()
	defer rest()
	forget()
	returned = newArea()
	if selfCheck != nil {
		if err := selfCheck(); err != nil {
			returned.bytes()[0] = 1
			returned.setList(4, []byte(err.Error()))
		}
	}
	return addressOfArea(returned)
}

// init lets the packages log and log/slog write log lines with a level. The collector rests until the first
// task, as the host asks for memory before it.
func init() {
	slog.SetDefault(slog.New(&lines{}))
	rest()
}

type lines struct {
	attributes []slog.Attr
	group      string
}

func (*lines) Enabled(context.Context, slog.Level) bool { return true }

func (to *lines) Handle(_ context.Context, record slog.Record) error {
	var text strings.Builder
	text.WriteString(record.Message)
	write := func(attribute slog.Attr) bool {
		text.WriteString(" " + attribute.String())
		return true
	}
	for _, attribute := range to.attributes {
		write(attribute)
	}
	record.Attrs(func(attribute slog.Attr) bool { return write(to.named(attribute)) })
	level := uint32(4)
	switch {
	case record.Level < slog.LevelInfo:
		level = 1
	case record.Level < slog.LevelWarn:
		level = 2
	case record.Level < slog.LevelError:
		level = 3
	}
	log(level, "", text.String())
	return nil
}

func (to *lines) named(attribute slog.Attr) slog.Attr {
	attribute.Key = to.group + attribute.Key
	return attribute
}

func (to *lines) WithAttrs(attributes []slog.Attr) slog.Handler {
	made := &lines{append([]slog.Attr{}, to.attributes...), to.group}
	for _, attribute := range attributes {
		made.attributes = append(made.attributes, to.named(attribute))
	}
	return made
}

func (to *lines) WithGroup(name string) slog.Handler {
	return &lines{to.attributes, to.group + name + "."}
}

//go:wasmimport wasi:logging/logging@0.1.0-draft log
func log(level uint32, context, message string)

//go:wasmimport tqhost:extensions/outage@0.1.0 unavailable
func outageUnavailable(index uint32, timed bool, afterMS uint64)

//go:wasmimport tqhost:handler/context@0.1.0 remaining-ms
func remainingMS() uint64

func hostRemaining() time.Duration {
	return time.Duration(min(remainingMS(), 1<<42)) * time.Millisecond
}

//go:wasmimport tqhost:handler/context@0.1.0 progress
func hostProgress(percent uint32, note string)

//go:wasmimport wasi:config/store@0.2.0-rc.1 get
func configGet(key string, to *area)

func hostConfig(key string) (string, bool) {
	to := call(func(to *area) { configGet(key, to) })
	if to.tag(0) != 0 {
		panic("the configuration cannot be read: " + string(to.list(8)))
	}
	if to.tag(4) == 0 {
		return "", false
	}
	return string(to.list(8)), true
}

// failed reads the error of a call; its case is at `at`, and its text after it.
func failed(to *area, at int, codes ...string) error {
	return &EffectError{codes[to.tag(at)], string(to.list(at + 4))}
}

//go:wasmimport tqhost:handler/outbox@0.1.0 enqueue
func outboxEnqueue(
	queue string, fields, fieldCount uint32, delayMS uint64, hasKey uint32, key string, to *area)

func enqueued(to *area) (string, error) {
	forget()
	if to.tag(0) != 0 {
		return "", failed(to, 4, "unknown-queue", "not-permitted", "too-large")
	}
	return string(to.list(4)), nil
}

func hostEnqueue(task loweredTask) (string, error) {
	return enqueued(call(func(to *area) {
		outboxEnqueue(task.queue, fieldsOut(task.fields), uint32(len(task.fields)), task.delayMS,
			hasKey(task), task.key, to)
	}))
}

func hasKey(task loweredTask) uint32 {
	if task.key == "" {
		return 0
	}
	return 1
}

//go:wasmimport tqhost:handler/outbox@0.1.0 fan-out
func outboxFanOut(
	children, childCount uint32,
	queue string, fields, fieldCount uint32, delayMS uint64, hasKey uint32, key string, to *area)

func hostFanOut(children []loweredTask, then loweredTask) (string, error) {
	var content []byte
	for _, child := range children {
		content = appendList(content, []byte(child.queue))
		content = binary.LittleEndian.AppendUint32(content, fieldsOut(child.fields))
		content = binary.LittleEndian.AppendUint32(content, uint32(len(child.fields)))
		content = binary.LittleEndian.AppendUint64(content, child.delayMS)
		content = binary.LittleEndian.AppendUint32(content, hasKey(child))
		content = appendList(content, []byte(child.key))
		content = append(content, 0, 0, 0, 0)
	}
	return enqueued(call(func(to *area) {
		outboxFanOut(addressOf(content), uint32(len(children)), then.queue, fieldsOut(then.fields),
			uint32(len(then.fields)), then.delayMS, hasKey(then), then.key, to)
	}))
}

//go:wasmimport tqhost:handler/flow@0.1.0 results
func flowResults(to *area)

func hostFlowResults() []ChildResult {
	to := call(func(to *area) { flowResults(to) })
	results := make([]ChildResult, to.u32(4))
	content := take(to.u32(0), to.u32(4)*28)
	for index := range results {
		word := func(n int) uint32 { return binary.LittleEndian.Uint32(content[index*28+n*4:]) }
		result := ChildResult{TaskID: string(take(word(0), word(1))), Queue: string(take(word(2), word(3)))}
		if word(4)&0xff != 0 {
			result.Value = append([]byte{}, take(word(5), word(6))...)
		}
		results[index] = result
	}
	return results
}

//go:wasmimport tqhost:extensions/delivery@0.1.0 fence
func hostFence() uint64

//go:wasmimport tqhost:handler/state@0.1.0 get
func stateGet(key string, to *area)

//go:wasmimport tqhost:handler/state@0.1.0 set
func stateSet(key string, value, length uint32, ttlMS uint64, to *area)

//go:wasmimport tqhost:handler/state@0.1.0 delete
func stateDelete(key string, to *area)

//go:wasmimport tqhost:handler/state@0.1.0 increment
func stateIncrement(key string, delta int64, to *area)

func stateFailed(to *area, at int) error { return failed(to, at, "too-large", "unavailable") }

func hostStateGet(key string) ([]byte, error) {
	to := call(func(to *area) { stateGet(key, to) })
	if to.tag(0) != 0 {
		return nil, stateFailed(to, 4)
	}
	if to.tag(4) == 0 {
		return nil, nil
	}
	return append([]byte{}, to.list(8)...), nil
}

func hostStateSet(key string, value []byte, ttlMS uint64) error {
	to := call(func(to *area) { stateSet(key, addressOf(value), uint32(len(value)), ttlMS, to) })
	return done(to, stateFailed)
}

func done(to *area, why func(*area, int) error) error {
	forget()
	if to.tag(0) != 0 {
		return why(to, 4)
	}
	return nil
}

func hostStateDelete(key string) error {
	to := call(func(to *area) { stateDelete(key, to) })
	return done(to, stateFailed)
}

func hostStateIncrement(key string, delta int64) (int64, error) {
	to := call(func(to *area) { stateIncrement(key, delta, to) })
	if to.tag(0) != 0 {
		return 0, stateFailed(to, 8)
	}
	return int64(to.u64(8)), nil
}

//go:wasmimport tqhost:extensions/records@0.1.0 put
func recordsPut(key string, fields, fieldCount uint32, to *area)

//go:wasmimport tqhost:extensions/records@0.1.0 get
func recordsGet(key string, to *area)

//go:wasmimport tqhost:extensions/records@0.1.0 delete
func recordsDelete(key string, to *area)

//go:wasmimport tqhost:extensions/records@0.1.0 expire
func recordsExpire(key string, ttlMS uint64, to *area)

func recordsFailed(to *area, at int) error {
	return failed(to, at, "not-permitted", "too-large", "unavailable")
}

func hostRecordsPut(key string, fields []Field) error {
	to := call(func(to *area) { recordsPut(key, fieldsOut(fields), uint32(len(fields)), to) })
	return done(to, recordsFailed)
}

func hostRecordsGet(key string) ([]Field, bool, error) {
	to := call(func(to *area) { recordsGet(key, to) })
	if to.tag(0) != 0 {
		return nil, false, recordsFailed(to, 4)
	}
	if to.tag(4) == 0 {
		return nil, false, nil
	}
	return fieldsIn(to.u32(8), to.u32(12)), true, nil
}

func hostRecordsDelete(key string) error {
	to := call(func(to *area) { recordsDelete(key, to) })
	return done(to, recordsFailed)
}

func hostRecordsExpire(key string, ttlMS uint64) error {
	to := call(func(to *area) { recordsExpire(key, ttlMS, to) })
	return done(to, recordsFailed)
}

//go:wasmimport tqhost:handler/blobs@0.1.0 put
func blobsPut(name, contentType string, data, length uint32, to *area)

//go:wasmimport tqhost:handler/blobs@0.1.0 get
func blobsGet(name string, to *area)

func blobsFailed(to *area) error {
	return failed(to, 4, "invalid-name", "not-found", "too-large", "unavailable")
}

func hostBlobsPut(name, contentType string, data []byte) (string, error) {
	to := call(func(to *area) { blobsPut(name, contentType, addressOf(data), uint32(len(data)), to) })
	forget()
	if to.tag(0) != 0 {
		return "", blobsFailed(to)
	}
	return string(to.list(4)), nil
}

func hostBlobsGet(name string) ([]byte, error) {
	to := call(func(to *area) { blobsGet(name, to) })
	if to.tag(0) != 0 {
		return nil, blobsFailed(to)
	}
	return append([]byte{}, to.list(4)...), nil
}
