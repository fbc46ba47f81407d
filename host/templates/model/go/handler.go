// Asks a model for a summary of a text.
//
// In: a task with the field `content`; and the plugin's `config`: `url` of a server with OpenAI's interface,
// `model`, and `api_key`, if the server wants one. Out: `{"summary": …}`. If the server is busy or away, the
// task is tried again when the server says, and a queue with `hold` waits for it.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"example.com/{{MODULE}}/tqhost"
	requests "example.com/{{MODULE}}/tqhost/http"
)

var client = http.Client{Timeout: 30 * time.Second}

// Summary is the result of a task.
type Summary struct {
	Summary string `json:"summary"`
}

// joined returns the text of an answer that comes as events.
func joined(events io.Reader) (string, error) {
	var text strings.Builder
	lines := bufio.NewScanner(events)
	// The longest event that it takes: 1 MiB.
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		if !isData || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return "", tqhost.Retry("reading the answer: " + err.Error())
		}
		for _, choice := range chunk.Choices {
			text.WriteString(choice.Delta.Content)
		}
		tqhost.Progress(50, fmt.Sprint("the model has written ", text.Len(), " bytes"))
	}
	return text.String(), lines.Err()
}

func ask(prompt string) (string, error) {
	url, _ := tqhost.Config("url")
	model, _ := tqhost.Config("model")
	question, _ := json.Marshal(map[string]any{
		"model":    cmp.Or(model, "small"),
		"messages": []map[string]string{{"role": "user", "content": prompt}},
		"stream":   true,
	})
	request, err := http.NewRequest("POST", url+"/chat/completions", bytes.NewReader(question))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	if key, isGranted := tqhost.Config("api_key"); isGranted {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	tqhost.Progress(10, "waits for the model")
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	said := fmt.Sprint("the model's server says ", response.StatusCode)
	switch status := response.StatusCode; {
	case status == 429 || status == 503:
		return "", tqhost.Unavailable(said).After(requests.RetryAfter(response))
	case status >= 500:
		return "", tqhost.Retry(said)
	case status != 200:
		why, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return "", tqhost.Reject(fmt.Sprintf("%s: %s", said, why))
	}
	return joined(response.Body)
}

func summarize(task *tqhost.Task) (any, error) {
	content, err := task.Text("content")
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(content) == "" {
		return nil, tqhost.Reject("field `content` is empty")
	}
	summary, err := ask("Summarize in one sentence:\n\n" + content)
	return Summary{summary}, err
}

func init() { tqhost.Handle(summarize) }

// main is not called. The compiler wants it.
func main() {}
