// A guest in Go: it counts its tasks, prints, sends requests to `url`, and ends as the field `end` says.
//
// It returns `tasks`, the number of its tasks with this one; with `url` the response; with `effects` and
// `blobs` what it reads.
package main

import (
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"guest/tqhost"
	requests "guest/tqhost/http"
)

var tasks int

func work(task *tqhost.Task) (any, error) {
	tasks++
	fmt.Println("printed by", task.ID)
	fmt.Fprintln(os.Stderr, "complained by", task.ID)
	slog.Warn("warned by "+task.ID, "n", 1)
	log.Print("logged by ", task.ID)
	end := "well"
	if task.Has("end") {
		end, _ = task.Text("end")
	}
	if task.Has("url") {
		answer, err := ask(task, end)
		var failure *tqhost.HTTPError
		if end == "code" && errors.As(err, &failure) {
			return failure.Code, nil
		}
		return answer, err
	}
	switch end {
	case "effects":
		key, err := task.Text("key")
		if err != nil {
			return nil, err
		}
		return effects(key)
	case "blobs":
		return files(task.ID)
	case "throw":
		explode()
	case "caused":
		return nil, fmt.Errorf("it was not there: %w", errors.New("boom in Go"))
	case "recursion":
		return recurse(0), nil
	case "exit":
		os.Exit(3)
	case "stuck":
		<-make(chan int)
	case "random":
		return drawn(), nil
	case "clocks":
		return clocks(), nil
	case "reject":
		return nil, fmt.Errorf("wrapped: %w", tqhost.Reject("as told"))
	case "retry":
		return nil, tqhost.Retry("as told").After(1500 * time.Millisecond)
	case "defer":
		return nil, tqhost.Defer("as told", time.Minute)
	case "none":
		return nil, nil
	}
	return map[string]any{"tasks": tasks, "seconds": time.Now().Unix()}, nil
}

type shelf struct{ books []string }

func (shelf *shelf) take(n int) string { return shelf.books[n] }

func explode() { fmt.Println((&shelf{}).take(3)) }

func recurse(n int) int { return recurse(n+1) + 1 }

func drawn() any {
	bytes := make([]byte, 16)
	_, _ = crand.Read(bytes)
	seeded := rand.New(rand.NewPCG(1, 2))
	return map[string]any{
		"drawn": rand.Float64(), "seeded": seeded.Float64(), "text": crand.Text(),
		"bytes": fmt.Sprintf("%x", bytes),
	}
}

// clocks sleeps in two goroutines at once, and returns what the clocks show.
func clocks() any {
	began := time.Now()
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { time.Sleep(20 * time.Millisecond) })
	}
	both.Wait()
	return map[string]any{"slept": time.Since(began).Seconds(), "seconds": time.Now().Unix()}
}

// effects has effects of each kind, with a record at `key`, and returns what it reads then.
func effects(key string) (any, error) {
	_, enqueued := tqhost.Enqueue(tqhost.NewTask{
		Queue: "reports", Fields: tqhost.Fields{"by": "go"}, Delay: time.Millisecond, IdempotencyKey: "once",
	})
	count, counted := tqhost.State.Increment("count", 2)
	err := errors.Join(
		tqhost.State.Set("seen", map[string]string{"by": "go"}, time.Minute),
		tqhost.State.Set("gone", "x", 0),
		tqhost.State.Delete("gone"),
		tqhost.Records.Put(key, tqhost.Fields{"by": "go", "n": 1}),
		tqhost.Records.Expire(key, time.Minute),
		enqueued, counted,
	)
	if err != nil {
		return nil, err
	}
	seen, _ := tqhost.State.Get("seen")
	gone, _ := tqhost.State.Get("gone")
	record, _ := tqhost.Records.Get(key)
	fields := map[string]string{}
	for name, value := range record {
		fields[name] = string(value)
	}
	children := []string{}
	for _, child := range tqhost.FlowResults() {
		children = append(children, string(child.Value))
	}
	return map[string]any{
		"fence": tqhost.Fence(), "count": count, "seen": string(seen), "gone": gone == nil, "record": fields,
		"children": children,
	}, nil
}

// files puts a blob, reads it again, and names others that are refused.
func files(id string) (any, error) {
	name := id + "/rows.json"
	url, err := tqhost.Blobs.Put(name, "application/json", []byte(`{"by":"go"}`))
	if err != nil {
		return nil, err
	}
	read, err := tqhost.Blobs.Get(name)
	if err != nil {
		return nil, err
	}
	refused := []string{}
	for _, other := range []string{"../other", id + "/none"} {
		var failure *tqhost.EffectError
		if _, err := tqhost.Blobs.Get(other); errors.As(err, &failure) {
			refused = append(refused, failure.Code)
		}
	}
	return map[string]any{"url": url, "read": string(read), "bytes": len(read), "refused": refused}, nil
}

// ask sends a request to `url`, with `bodySize` bytes of body, `header`, and the timeout `seconds`; `times`
// of them at once. Each of these fields may be missing. With `throw` it panics after the request.
func ask(task *tqhost.Task, end string) (any, error) {
	url, _ := task.Text("url")
	size, seconds, times := 0, 0.0, 1
	for name, into := range map[string]any{"bodySize": &size, "seconds": &seconds, "times": &times} {
		if task.Has(name) {
			if err := task.JSON(name, into); err != nil {
				return nil, err
			}
		}
	}
	client := http.Client{Timeout: time.Duration(seconds * float64(time.Second))}
	answers := make([]any, times)
	failures := make([]error, times)
	var all sync.WaitGroup
	for index := range times {
		all.Go(func() { answers[index], failures[index] = one(&client, task, url, size) })
	}
	all.Wait()
	if end == "throw" {
		explode()
	}
	return answers[0], errors.Join(failures...)
}

func one(client *http.Client, task *tqhost.Task, url string, size int) (any, error) {
	method, body := "GET", io.Reader(nil)
	if size > 0 {
		method, body = "POST", strings.NewReader(strings.Repeat("x", size))
	}
	request, err := http.NewRequest(method, url, body)
	if err != nil {
		return nil, tqhost.Reject(err.Error())
	}
	if task.Has("header") {
		name, _ := task.Text("header")
		request.Header.Set(name, "own")
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusTooManyRequests {
		return nil, tqhost.Unavailable("the server is busy").After(requests.RetryAfter(response))
	}
	kind := any(nil)
	if value := response.Header.Get("Content-Type"); value != "" {
		kind = value
	}
	return map[string]any{"status": response.StatusCode, "type": kind, "body": string(content)}, nil
}

func check() error {
	if told, _ := tqhost.Config("self-check"); told != "" {
		return errors.New("the self-check is told to be " + told)
	}
	return nil
}

func init() {
	tqhost.Handle(work)
	tqhost.SelfCheck(check)
}

func main() {}
