// Conformance carries out the calls of the conformance suite: a line of JSON for each call in, and for each
// answer out.
//
//	REDIS_URL=redis://… go run .
//
// Not here: the cases (`../../conformance`), and the judge (`tests/world/clients.rs`).
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	tqhost "example.com/tqhost-client"
	"github.com/gomodule/redigo/redis"
)

type call struct {
	Call, Stream, API, Queue, ID, Secret string
	Token                                string
	MaxBacklog                           int64 `json:"max_backlog"`
	Fields                               [][2]string
	Key, Traceparent                     *string
	DelayMS                              int64 `json:"delay_ms"`
	TimeoutMS                            int64 `json:"timeout_ms"`
	Headers                              map[string]string
	Body                                 []byte
	Now, Tolerance                       int64
	HasID                                bool `json:"-"`
}

func carryOut(ctx context.Context, c call, do tqhost.Do) (any, error) {
	queue := tqhost.Queue{Do: do, Stream: c.Stream, MaxBacklog: c.MaxBacklog}
	switch c.Call {
	case "verify":
		header := http.Header{}
		for name, value := range c.Headers {
			header.Set(name, value)
		}
		now, tolerance := time.Unix(c.Now, 0), time.Duration(c.Tolerance)*time.Second
		id, err := tqhost.VerifyWebhook(c.Secret, header, c.Body, now, tolerance)
		return map[string]string{"id": id}, err
	case "cancel":
		before, err := tqhost.Cancel(ctx, c.API, c.Queue, c.ID, c.Token)
		return map[string]string{"before": before}, err
	case "enqueue":
		var fields []tqhost.Field
		for _, pair := range c.Fields {
			value, err := base64.StdEncoding.DecodeString(pair[1])
			if err != nil {
				return nil, err
			}
			fields = append(fields, tqhost.Field{Name: pair[0], Value: value})
		}
		delay := time.Duration(c.DelayMS) * time.Millisecond
		options := tqhost.Options{Key: c.Key, Traceparent: c.Traceparent, Delay: delay}
		if c.HasID {
			options.ID = &c.ID
		}
		id, err := queue.Enqueue(ctx, fields, options)
		return map[string]string{"id": id}, err
	case "wait":
		status, err := queue.Wait(ctx, c.ID, time.Duration(c.TimeoutMS)*time.Millisecond)
		if errors.Is(err, tqhost.ErrNotEnded) {
			return map[string]string{"error": "not-ended", "status": status.Status}, nil
		}
		return shown(status), err
	}
	status, err := queue.Status(ctx, c.ID)
	return shown(status), err
}

func shown(s tqhost.Status) map[string]any {
	shown := map[string]any{"id": s.ID, "status": s.Status}
	numbers := map[string]int64{"attempt": s.Attempt, "enqueued_at": s.EnqueuedAt, "due_at": s.DueAt,
		"started_at": s.StartedAt, "finished_at": s.FinishedAt}
	for name, number := range numbers {
		if number != 0 {
			shown[name] = number
		}
	}
	for name, text := range map[string]string{"note": s.Note, "error": s.Error, "duplicate_of": s.DuplicateOf} {
		if text != "" {
			shown[name] = text
		}
	}
	if s.Progress != nil {
		shown["progress"] = *s.Progress
	}
	if s.Result != nil {
		shown["result"] = s.Result
	}
	return shown
}

func failed(err error) any {
	kinds := map[string]error{"not-a-task": tqhost.ErrNotATask, "queue-full": tqhost.ErrQueueFull,
		"bad-webhook": tqhost.ErrBadWebhook, "bad-secret": tqhost.ErrBadSecret}
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			return map[string]string{"error": name, "message": err.Error()}
		}
	}
	var refused *tqhost.APIError
	if errors.As(err, &refused) {
		return map[string]any{"error": "api-refused", "code": refused.Code, "http_status": refused.HTTPStatus}
	}
	log.Fatal(err)
	return nil
}

func main() {
	connection, err := redis.DialURL(os.Getenv("REDIS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	do := func(_ context.Context, args ...any) (any, error) {
		return connection.Do(args[0].(string), args[1:]...)
	}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		var c call
		var names map[string]json.RawMessage
		if err := errors.Join(err, json.Unmarshal(line, &c), json.Unmarshal(line, &names)); err != nil {
			log.Fatal(err)
		}
		_, c.HasID = names["id"]
		answer, err := carryOut(context.Background(), c, do)
		if err != nil {
			answer = failed(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
			log.Fatal(err)
		}
	}
}
