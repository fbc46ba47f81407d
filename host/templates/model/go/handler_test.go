// Tests the handler's function, and the built component in the sandbox of a host, with a server of their own.
//
// `make test` builds the component first.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"example.com/{{MODULE}}/tqhost"
)

// serve starts a model's server, and grants it to the handler's function.
func serve(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	tqhost.Memory.Config = map[string]string{"url": server.URL + "/v1", "model": "small", "api_key": "k"}
	return server
}

func writeEvents(to http.ResponseWriter, pieces ...string) {
	for _, piece := range pieces {
		fmt.Fprintf(to, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", piece)
	}
	fmt.Fprint(to, "data: [DONE]\n\n")
}

func TestTheAnswerIsPutTogether(t *testing.T) {
	serve(t, func(to http.ResponseWriter, asked *http.Request) {
		var question struct{ Model string }
		err := json.NewDecoder(asked.Body).Decode(&question)
		if err != nil || question.Model != "small" || asked.URL.Path != "/v1/chat/completions" ||
			asked.Header.Get("Authorization") != "Bearer k" {
			t.Error(asked.URL, asked.Header, question, err)
		}
		writeEvents(to, "A short", " text.")
	})
	result, err := tqhost.Run(summarize, tqhost.Fields{"content": "x"})
	if err != nil || string(result) != `{"summary":"A short text."}` {
		t.Fatalf("%s, %v", result, err)
	}
}

// fails runs the handler's function, and checks that it waits for the server.
func fails(t *testing.T, wait time.Duration) {
	_, err := tqhost.Run(summarize, tqhost.Fields{"content": "x"})
	var failure *tqhost.Failure
	if !errors.As(err, &failure) || !failure.IsUnavailable() {
		t.Fatal(err)
	}
	if chosen, _ := failure.Wait(); chosen != wait {
		t.Fatal(chosen)
	}
}

func TestABusyServerIsAskedAgainWhenItSays(t *testing.T) {
	serve(t, func(to http.ResponseWriter, _ *http.Request) {
		to.Header().Set("Retry-After", "2")
		to.WriteHeader(http.StatusTooManyRequests)
	})
	fails(t, 2*time.Second)
}

func TestAServerThatIsAwayIsAskedAgain(t *testing.T) {
	serve(t, nil).Close()
	fails(t, 0)
}

func TestTheComponentAsksAServer(t *testing.T) {
	server := serve(t, func(to http.ResponseWriter, _ *http.Request) { writeEvents(to, "Seven", " words.") })
	config := filepath.Join(t.TempDir(), "tqhost.toml")
	grants := fmt.Sprintf("[queues.q]\nplugin = \"p\"\n[plugins.p]\nallowed_hosts = [%q]\n"+
		"config = { url = \"%s/v1\" }\n", server.URL, server.URL)
	if err := os.WriteFile(config, []byte(grants), 0o644); err != nil {
		t.Fatal(err)
	}
	program := os.Getenv("TQHOST")
	if program == "" {
		program = "tqhost"
	}
	args := []string{"try", "{{NAME}}.wasm", "task.json", "--json", "--config", config, "--queue", "q"}
	said, err := exec.Command(program, args...).Output()
	var view struct{ Result Summary }
	if json.Unmarshal(said, &view) != nil || view.Result.Summary != "Seven words." {
		t.Fatalf("%s %v", said, err)
	}
}
