// Ten everyday programs in Go. The field `program` says which one runs.
package main

import (
	crand "crypto/rand"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/slug"

	"example.com/{{MODULE}}/tqhost"
	_ "example.com/{{MODULE}}/tqhost/http"
)

var programs = map[string]func(*tqhost.Task) (any, error){
	"packages": func(*tqhost.Task) (any, error) {
		return map[string]string{"used": slug.Of("Creme Brulee")}, nil
	},
	"dates":      dates,
	"uuids":      uuids,
	"logging":    logging,
	"http":       request,
	"json":       sum,
	"files":      files,
	"exceptions": func(*tqhost.Task) (any, error) { return nil, fmt.Errorf("the order failed: %w", order()) },
	"async":      waits,
	"random":     draws,
}

func dates(*tqhost.Task) (any, error) {
	date, err := time.Parse(time.RFC3339, "2026-02-28T23:30:00+02:00")
	if err != nil {
		return nil, err
	}
	date = date.UTC().AddDate(0, 0, 1)
	shown := date.Format(time.RFC3339)
	return map[string]any{"date": shown, "day": date.Weekday().String(), "seconds": time.Now().Unix()}, nil
}

// There is no package for it in the standard library.
func uuids(*tqhost.Task) (any, error) {
	var random [16]byte
	if _, err := crand.Read(random[:]); err != nil {
		return nil, err
	}
	random[6], random[8] = random[6]&0x0f|0x40, random[8]&0x3f|0x80
	uuid := fmt.Sprintf("%x-%x-%x-%x-%x", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
	return map[string]string{"uuid": uuid}, nil
}

func logging(*tqhost.Task) (any, error) {
	fmt.Println("an everyday line", 1)
	slog.Warn("an everyday warning", "n", 1)
	return nil, nil
}

func request(task *tqhost.Task) (any, error) {
	service, _ := tqhost.Config("service")
	body, err := json.Marshal(map[string][]string{"words": {"one", "two"}})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest("POST", service, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Task", task.ID)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return map[string]any{"status": response.StatusCode, "body": string(answer)}, err
}

func sum(task *tqhost.Task) (any, error) {
	var order struct {
		Items []struct {
			Price float64
			N     float64
		}
		Name string
	}
	if err := task.JSON("order", &order); err != nil {
		return nil, err
	}
	total := 0.0
	for _, item := range order.Items {
		total += item.Price * item.N
	}
	return map[string]any{"total": total, "name": order.Name}, nil
}

func files(task *tqhost.Task) (any, error) {
	var rows strings.Builder
	to := csv.NewWriter(&rows)
	for n := range 100_000 {
		if err := to.Write([]string{strconv.Itoa(n), fmt.Sprint("row ", n)}); err != nil {
			return nil, err
		}
	}
	to.Flush()
	name := task.ID + "/rows.csv"
	if _, err := tqhost.Blobs.Put(name, "text/csv", []byte(rows.String())); err != nil {
		return nil, err
	}
	content, err := tqhost.Blobs.Get(name)
	if err != nil {
		return nil, err
	}
	read, err := csv.NewReader(strings.NewReader(string(content))).ReadAll()
	if err != nil {
		return nil, err
	}
	total := 0
	for _, row := range read {
		n, err := strconv.Atoi(row[0])
		if err != nil {
			return nil, err
		}
		total += n
	}
	return map[string]int{"rows": len(read), "sum": total}, nil
}

var errNoBook = errors.New("there is no book 7")

func order() error { return fmt.Errorf("the order has no price: %w", errNoBook) }

func waits(*tqhost.Task) (any, error) {
	values := make(chan int)
	var both sync.WaitGroup
	for value := range 3 {
		both.Go(func() {
			time.Sleep(20 * time.Millisecond)
			values <- value
		})
	}
	go func() {
		both.Wait()
		close(values)
	}()
	total := 0
	for value := range values {
		total += value
	}
	return map[string]int{"sum": total}, nil
}

func draws(*tqhost.Task) (any, error) {
	var random [8]byte
	if _, err := crand.Read(random[:]); err != nil {
		return nil, err
	}
	secure := float64(binary.LittleEndian.Uint64(random[:])>>11) + 0.5
	return map[string][]float64{"drawn": {rand.Float64(), secure}}, nil
}

func handle(task *tqhost.Task) (any, error) {
	name, err := task.Text("program")
	if err != nil {
		return nil, err
	}
	return programs[name](task)
}

func init() { tqhost.Handle(handle) }

func main() {}
