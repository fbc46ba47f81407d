package tqhost

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Task is one attempt of a task.
type Task struct {
	// ID is the same on every attempt, so it is an idempotency key for effects outside tqhost.
	ID string
	// Queue is the queue's name in the host's configuration.
	Queue string
	// Fields are the producer's fields in their order.
	Fields []Field
	// Attempt is 1 on the first attempt.
	Attempt int
	// MaxAttempts is the number of attempts that are allowed in all.
	MaxAttempts int
	EnqueuedAt  time.Time
	// Deadline is when the host stops this attempt.
	Deadline time.Time
	// Traceparent is the producer's W3C trace context, or empty.
	Traceparent string
}

// Field is one field of a task, as its producer wrote it.
type Field struct {
	Name  string
	Value []byte
}

// Has says whether the task has this field.
func (task *Task) Has(name string) bool {
	for _, field := range task.Fields {
		if field.Name == name {
			return true
		}
	}
	return false
}

// Bytes returns a field's bytes. If the field is missing, the error is a rejection, because no attempt would
// find it.
func (task *Task) Bytes(name string) ([]byte, error) {
	for _, field := range task.Fields {
		if field.Name == name {
			return field.Value, nil
		}
	}
	return nil, Reject(fmt.Sprintf("field `%s` is missing: it has %s", name, task.names()))
}

// names are those of the fields that the task has, at most ten. One of them may be a typing error.
func (task *Task) names() string {
	names := make([]string, 0, 11)
	for at, field := range task.Fields {
		if at == 10 {
			names = append(names, fmt.Sprintf("and %d more", len(task.Fields)-at))
			break
		}
		names = append(names, field.Name)
	}
	if len(names) == 0 {
		return "no fields"
	}
	return strings.Join(names, ", ")
}

// Text returns a field's text.
func (task *Task) Text(name string) (string, error) {
	value, err := task.Bytes(name)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(value) {
		return "", Reject(fmt.Sprintf("field `%s` is not UTF-8 text", name))
	}
	return string(value), nil
}

// JSON reads a field that holds JSON into the value that `into` points to.
func (task *Task) JSON(name string, into any) error {
	value, err := task.Bytes(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(value, into); err != nil {
		return Reject(fmt.Sprintf("field `%s` is not JSON as expected: %v", name, err))
	}
	return nil
}

// IsLastAttempt says whether the task is dead if this attempt fails.
func (task *Task) IsLastAttempt() bool {
	return task.Attempt >= task.MaxAttempts
}
