// Tests the handler's function, and the built component in the sandbox of a host: no Redis, no host.
//
// `make test` builds the component first.
package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"example.com/{{MODULE}}/tqhost"
)

func TestWordsAreCounted(t *testing.T) {
	result, err := tqhost.Run(count, tqhost.Fields{"content": "one  two\nthree"})
	if err != nil || string(result) != `{"words":3}` {
		t.Fatalf("%s, %v", result, err)
	}
}

// tried runs the built component on a task.
func tried(t *testing.T, args ...string) (outcome, message string, result Count) {
	program := os.Getenv("TQHOST")
	if program == "" {
		program = "tqhost"
	}
	// The exit code is that of the outcome.
	said, err := exec.Command(program, append([]string{"try", "{{NAME}}.wasm", "--json"}, args...)...).Output()
	var view struct {
		Outcome string
		Message string
		Result  Count
	}
	if json.Unmarshal(said, &view) != nil {
		t.Fatalf("%s %v", said, err)
	}
	return view.Outcome, view.Message, view.Result
}

func TestTheWordsOfTheSampleAreCounted(t *testing.T) {
	outcome, message, result := tried(t, "task.json")
	if outcome != "completed" || message != "" || result.Words != 7 {
		t.Fatal(outcome, message, result)
	}
}

func TestATaskWithoutTextIsRejected(t *testing.T) {
	outcome, message, _ := tried(t, "--field", "other=1")
	if outcome != "reject" || message != "field `content` is missing: it has other" {
		t.Fatal(outcome, message)
	}
}
