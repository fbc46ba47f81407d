// Uses each package of docs/languages/packages.md. The field `package` says which one.
//
// `model` of the plugin's config is a server with the interface of OpenAI, and `web` one with the pages of
// the tests.
package main

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/PuerkitoBio/goquery"
	"github.com/cenkalti/backoff/v4"
	"github.com/go-playground/validator/v10"
	"github.com/go-resty/resty/v2"
	_ "github.com/go-sql-driver/mysql"
	"github.com/golang-jwt/jwt/v4"
	"github.com/gomodule/redigo/redis"
	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"github.com/hashicorp/go-retryablehttp"
	_ "github.com/mattn/go-sqlite3"
	"github.com/mitchellh/mapstructure"
	"github.com/pelletier/go-toml/v2"
	"github.com/rs/zerolog"
	"github.com/shopspring/decimal"
	"github.com/tidwall/gjson"
	"github.com/yuin/goldmark"
	"gopkg.in/yaml.v3"

	"example.com/p/tqhost"
	_ "example.com/p/tqhost/http"
)

type order struct {
	Items []int  `validate:"min=1"`
	Name  string `validate:"required"`
}

var ordered = order{[]int{1}, "x"}

// is compares what a package found with what it should find.
func is(found, expected any) error {
	if !reflect.DeepEqual(found, expected) {
		return fmt.Errorf("%v is not %v", found, expected)
	}
	return nil
}

var programs = map[string]func(model, web string) error{
	"github.com/go-resty/resty/v2": func(model, web string) error {
		client := resty.New().SetTransport(http.DefaultTransport)
		var said struct {
			Choices []struct{ Message struct{ Content string } }
		}
		question := map[string]any{"model": "m", "messages": []any{}}
		_, failed := client.R().SetBody(question).SetResult(&said).Post(model + "/chat/completions")
		zipped, lost := client.R().Get(web + "/zipped")
		_, late := client.SetTimeout(100 * time.Millisecond).R().Get(web + "/silent")
		if err := errors.Join(failed, lost); err != nil {
			return err
		}
		found := []any{said.Choices[0].Message.Content, zipped.String(), late != nil}
		return is(found, []any{"Hello", "zipped", true})
	},

	"github.com/hashicorp/go-retryablehttp": func(_, web string) error {
		client := retryablehttp.NewClient()
		client.HTTPClient.Transport = http.DefaultTransport
		client.RetryWaitMin, client.RetryWaitMax = 5*time.Millisecond, 5*time.Millisecond
		tries := 0
		client.RequestLogHook = func(_ retryablehttp.Logger, request *http.Request, _ int) {
			if tries++; tries == 3 {
				request.URL.RawQuery = "200"
			}
		}
		response, err := client.Get(web + "/status?503")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		return is(tries, 3)
	},

	"github.com/cenkalti/backoff/v4": func(_, web string) error {
		codes := []int{503, 503, 200}
		ask := func() error {
			response, err := http.Get(fmt.Sprint(web, "/status?", codes[0]))
			if err != nil {
				return err
			}
			defer response.Body.Close()
			codes = codes[1:]
			return is(response.StatusCode, 200)
		}
		if err := backoff.Retry(ask, backoff.NewConstantBackOff(5*time.Millisecond)); err != nil {
			return err
		}
		return is(len(codes), 0)
	},

	"github.com/google/uuid": func(_, _ string) error {
		named := uuid.NewSHA1(uuid.NameSpaceURL, []byte("x")).String()
		return is([]any{named, uuid.New() != uuid.New()}, []any{"4cd605e7-afa2-5360-b5b9-c5e9fb5c76f4", true})
	},

	"github.com/golang-jwt/jwt/v4": func(_, _ string) error {
		claims, key := jwt.MapClaims{"a": "b"}, []byte("k")
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(key)
		if err != nil {
			return err
		}
		read, err := jwt.Parse(token, func(*jwt.Token) (any, error) { return key, nil })
		if err != nil {
			return err
		}
		return is(read.Claims, claims)
	},

	"github.com/shopspring/decimal": func(_, _ string) error {
		return is(decimal.RequireFromString("0.1").Add(decimal.RequireFromString("0.2")).String(), "0.3")
	},

	"github.com/tidwall/gjson": func(_, _ string) error {
		return is(gjson.Get(`{"a": [{"b": 1}, {"b": 2}]}`, "a.#.b").String(), "[1,2]")
	},

	"github.com/go-playground/validator/v10": func(_, _ string) error {
		var wrong validator.ValidationErrors
		errors.As(validator.New().Struct(order{Items: []int{1}}), &wrong)
		return is([]any{len(wrong), wrong[0].Field(), wrong[0].Tag()}, []any{1, "Name", "required"})
	},

	"github.com/mitchellh/mapstructure": func(_, _ string) error {
		var read order
		err := mapstructure.WeakDecode(map[string]any{"items": []string{"1"}, "name": "x"}, &read)
		if err != nil {
			return err
		}
		return is(read, ordered)
	},

	"github.com/PuerkitoBio/goquery": func(_, _ string) error {
		page, err := goquery.NewDocumentFromReader(strings.NewReader("<ul><li>1<li><b>2</b></ul>"))
		if err != nil {
			return err
		}
		return is(page.Find("ul li b").Text(), "2")
	},

	"github.com/yuin/goldmark": func(_, _ string) error {
		var page bytes.Buffer
		if err := goldmark.Convert([]byte("*a*"), &page); err != nil {
			return err
		}
		return is(page.String(), "<p><em>a</em></p>\n")
	},

	"gopkg.in/yaml.v3":                func(_, _ string) error { return again(yaml.Marshal, yaml.Unmarshal) },
	"github.com/pelletier/go-toml/v2": func(_, _ string) error { return again(toml.Marshal, toml.Unmarshal) },

	"github.com/rs/zerolog": func(_, _ string) error {
		var lines bytes.Buffer
		log := zerolog.New(&lines)
		log.Info().Int("a", 1).Msg("b")
		return is(lines.String(), `{"level":"info","a":1,"message":"b"}`+"\n")
	},

	// These do not work.
	"github.com/mattn/go-sqlite3":    func(_, _ string) error { return pings("sqlite3", ":memory:") },
	"github.com/go-sql-driver/mysql": func(_, _ string) error { return pings("mysql", "tcp(example.com)/a") },
	"github.com/gomodule/redigo": func(_, _ string) error {
		_, err := redis.Dial("tcp", "example.com:6379")
		return err
	},
	"github.com/gorilla/websocket": func(_, _ string) error {
		_, _, err := websocket.DefaultDialer.Dial("wss://example.com", nil)
		return err
	},
}

// again reads an order that was written.
func again(write func(any) ([]byte, error), read func([]byte, any) error) error {
	text, err := write(ordered)
	if err != nil {
		return err
	}
	var found order
	if err := read(text, &found); err != nil {
		return err
	}
	return is(found, ordered)
}

func pings(driver, source string) error {
	database, err := sql.Open(driver, source)
	if err != nil {
		return err
	}
	return database.Ping()
}

func use(task *tqhost.Task) (any, error) {
	name, err := task.Text("package")
	if err != nil {
		return nil, err
	}
	model, _ := tqhost.Config("model")
	web, _ := tqhost.Config("web")
	return nil, programs[name](model, web)
}

func init() { tqhost.Handle(use) }

func main() {}
