// Counts the words of a text.
package main

import (
	"log/slog"
	"strings"

	"example.com/{{MODULE}}/tqhost"
)

// Count is the result of a task.
type Count struct {
	Words int `json:"words"`
}

func count(task *tqhost.Task) (any, error) {
	text, err := task.Text("content")
	if err != nil {
		return nil, err
	}
	words := len(strings.Fields(text))
	if words == 0 {
		return nil, tqhost.Reject("field `content` is empty")
	}
	slog.Info("counted", "words", words)
	return Count{words}, nil
}

func init() { tqhost.Handle(count) }

// main is not called. The compiler wants it.
func main() {}
