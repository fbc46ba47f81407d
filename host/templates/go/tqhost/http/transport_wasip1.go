package http

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"example.com/{{MODULE}}/tqhost"
)

func init() {
	http.DefaultTransport = transport{}
	// Clients with a transport of their own look the host's name up first. Without this, their error would be
	// about a name server that nobody has configured.
	net.DefaultResolver = &net.Resolver{
		PreferGo: true,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("a handler has no sockets; clients for HTTP need http.DefaultTransport")
		},
	}
}

type transport struct{}

// margin is the most time that is left for the handler after a request.
const margin = 500 * time.Millisecond

// limit is the time that a request may take. The host ends the attempt when its time is over, so a request
// has a tenth less, up to the margin. So the handler can still tell that the server did not answer.
type limit struct {
	ctx context.Context
	end time.Time
}

func limitOf(request *http.Request) limit {
	rest := tqhost.Remaining()
	return limit{request.Context(), time.Now().Add(rest - min(rest/10, margin))}
}

// RoundTrip sends a request. The response's body is read from the host while the handler reads it.
func (transport) RoundTrip(request *http.Request) (*http.Response, error) {
	return noted(send(request))
}

func send(request *http.Request) (*http.Response, error) {
	if request.Body != nil {
		defer request.Body.Close()
	}
	host, until := request.URL.Host, limitOf(request)
	if request.URL.Scheme != "http" && request.URL.Scheme != "https" {
		return nil, failure("HTTP-request-URI-invalid", "the url does not begin with http:// or https://")
	}
	if host == "" || request.URL.User != nil {
		return nil, failure("HTTP-request-URI-invalid", "the url has no host, or a user name in it")
	}
	if request.Host != "" && request.Host != host {
		return nil, failure("forbidden", "the header `Host` cannot be sent")
	}
	message, err := messageOf(request)
	if err != nil {
		return nil, err
	}
	to := newArea()
	body := uint32(0)
	hasBody := request.Body != nil && request.Body != http.NoBody
	if hasBody {
		requestBody(message, to)
		body = to.u32(4)
	}
	tqhost.Call(func() { handle(message, 0, 0, to) })
	if to.tag(0) != 0 {
		return nil, errorOf(to.tag(8), host)
	}
	future := to.u32(8)
	defer dropFuture(future)
	if hasBody {
		if err := write(until, body, request.Body, host); err != nil {
			return nil, err
		}
	}
	// Other goroutines send their requests before this one waits.
	runtime.Gosched()
	ready := futureSubscribe(future)
	err = until.wait(ready, host)
	dropPollable(ready)
	if err != nil {
		return nil, err
	}
	// The response is ready, and nothing has taken it yet.
	tqhost.Call(func() { futureGet(future, to) })
	if to.tag(16) != 0 {
		return nil, errorOf(to.tag(24), host)
	}
	return responseOf(request, until, to.u32(24), host)
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

func messageOf(request *http.Request) (uint32, error) {
	fields := newFields()
	to := newArea()
	add := func(name, value string) error {
		fieldsAppend(fields, name, value, to)
		if to.tag(0) != 0 {
			// The value may be a secret.
			code := []string{"invalid-syntax", "forbidden", "immutable"}[to.tag(1)]
			return failure(code, "the header `"+name+"` cannot be sent")
		}
		return nil
	}
	for name, values := range request.Header {
		for _, value := range values {
			if err := add(strings.ToLower(name), value); err != nil {
				return 0, err
			}
		}
	}
	sends := request.Method == "POST" || request.Method == "PUT" || request.Method == "PATCH"
	if request.ContentLength > 0 || request.ContentLength == 0 && sends {
		if err := add("content-length", strconv.FormatInt(request.ContentLength, 10)); err != nil {
			return 0, err
		}
	}
	message := newRequest(fields)
	method, other := uint32(len(methods)), request.Method
	for index, name := range methods {
		if name == request.Method || request.Method == "" && name == "GET" {
			method, other = uint32(index), ""
		}
	}
	if requestSetMethod(message, method, other) != 0 {
		return 0, failure("HTTP-request-method-invalid", "there is no method `"+request.Method+"`")
	}
	scheme := uint32(0)
	if request.URL.Scheme == "https" {
		scheme = 1
	}
	refused := requestSetScheme(message, 1, scheme, "")
	refused |= requestSetAuthority(message, 1, request.URL.Host)
	refused |= requestSetPath(message, 1, request.URL.RequestURI())
	if refused != 0 {
		return 0, errorOf(19, request.URL.Host)
	}
	return message, nil
}

// write sends a body in pieces, as the host takes them.
func write(until limit, body uint32, from io.Reader, host string) error {
	to := newArea()
	bodyWrite(body, to)
	stream := to.u32(4)
	piece := make([]byte, 64<<10)
	refused := false
	for !refused {
		count, err := from.Read(piece)
		for at := 0; at < count && !refused; {
			streamCheckWrite(stream, to)
			if refused = failedStream(to, 8); refused {
				break
			}
			room := int(min(to.u64(8), 64<<10))
			if room == 0 {
				ready := outputSubscribe(stream)
				err := until.wait(ready, host)
				dropPollable(ready)
				if err != nil {
					return err
				}
				continue
			}
			room = min(room, count-at)
			streamWrite(stream, string(piece[at:at+room]), to)
			refused = failedStream(to, 4)
			at += room
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	dropOutput(stream)
	// If the server does not take the whole body, its response, or the error in its place, says why.
	if refused {
		dropBody(body)
	} else {
		tqhost.Call(func() { bodyFinish(body, 0, 0, to) })
	}
	return nil
}

func failedStream(to *area, at int) bool {
	if to.tag(0) == 0 {
		return false
	}
	if to.tag(at) == 0 {
		dropError(to.u32(at + 4))
	}
	return true
}

func responseOf(request *http.Request, until limit, answer uint32, host string) (*http.Response, error) {
	to := newArea()
	status := int(responseStatus(answer))
	fields := responseHeaders(answer)
	tqhost.Call(func() { fieldsEntries(fields, to) })
	header := http.Header{}
	for _, pair := range to.pairs(0) {
		header.Add(pair[0], pair[1])
	}
	dropFields(fields)
	responseConsume(answer, to)
	content := &reader{until: until, host: host, answer: answer, body: to.u32(4)}
	bodyStream(content.body, to)
	content.stream = to.u32(4)
	length := int64(-1)
	if value, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		length = value
	}
	response := &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: content, ContentLength: length, Request: request,
	}
	// A handler that asks for a coding itself decodes it itself, as with net/http elsewhere.
	if request.Header.Get("Accept-Encoding") == "" && strings.EqualFold(header.Get("Content-Encoding"), "gzip") {
		response.Body = &unzipped{Closer: content, from: content}
		response.Uncompressed, response.ContentLength = true, -1
		header.Del("Content-Encoding")
		header.Del("Content-Length")
	}
	return response, nil
}

// unzipped is the body of a response that came as gzip.
type unzipped struct {
	io.Closer
	from   io.Reader
	reader *gzip.Reader
}

func (body *unzipped) Read(to []byte) (int, error) {
	if body.reader == nil {
		reader, err := gzip.NewReader(body.from)
		if err != nil {
			return 0, err
		}
		body.reader = reader
	}
	return body.reader.Read(to)
}

// reader is the body of a response.
type reader struct {
	until                limit
	host                 string
	answer, body, stream uint32
	ended                error
}

func (from *reader) Read(to []byte) (int, error) {
	if from.ended != nil || len(to) == 0 {
		return 0, from.ended
	}
	ready := inputSubscribe(from.stream)
	err := from.until.wait(ready, from.host)
	dropPollable(ready)
	if err != nil {
		return 0, from.end(err)
	}
	area := newArea()
	tqhost.Call(func() { streamRead(from.stream, uint64(min(len(to), 64<<10)), area) })
	if area.tag(0) == 0 {
		return copy(to, area.list(4)), nil
	}
	if area.tag(4) == 1 {
		return 0, from.end(io.EOF)
	}
	failed := area.u32(8)
	tqhost.Call(func() { errorCode(failed, area) })
	dropError(failed)
	code := uint8(25)
	if area.tag(0) != 0 {
		code = area.tag(8)
	}
	cut := errorOf(code, from.host).(*tqhost.HTTPError)
	cut.Answered = true
	note(cut)
	return 0, from.end(cut)
}

func (from *reader) end(err error) error {
	from.ended = err
	if from.stream != 0 {
		dropInput(from.stream)
		dropIncoming(from.body)
		dropResponse(from.answer)
		from.stream = 0
	}
	return err
}

func (from *reader) Close() error {
	if from.ended == nil {
		from.end(errors.New("the body is closed"))
	}
	return nil
}

// wait blocks until the host is ready, or the time is over.
func (until limit) wait(ready uint32, host string) error {
	if err := until.ctx.Err(); err != nil {
		return err
	}
	rest := time.Until(until.end)
	if deadline, has := until.ctx.Deadline(); has {
		rest = min(rest, time.Until(deadline))
	}
	timer := subscribeDuration(uint64(max(0, rest)))
	defer dropPollable(timer)
	if !poll(ready, timer) {
		return failure("HTTP-response-timeout", host+" did not answer in time")
	}
	return nil
}

func failure(code, why string) error { return &tqhost.HTTPError{Code: code, Why: why} }

// The cases of wasi:http's error-code, in their order.
var codes = strings.Fields(`DNS-timeout DNS-error destination-not-found destination-unavailable
	destination-IP-prohibited destination-IP-unroutable connection-refused connection-terminated
	connection-timeout connection-read-timeout connection-write-timeout connection-limit-reached
	TLS-protocol-error TLS-certificate-error TLS-alert-received HTTP-request-denied
	HTTP-request-length-required HTTP-request-body-size HTTP-request-method-invalid HTTP-request-URI-invalid
	HTTP-request-URI-too-long HTTP-request-header-section-size HTTP-request-header-size
	HTTP-request-trailer-section-size HTTP-request-trailer-size HTTP-response-incomplete
	HTTP-response-header-section-size HTTP-response-header-size HTTP-response-body-size
	HTTP-response-trailer-section-size HTTP-response-trailer-size HTTP-response-transfer-coding
	HTTP-response-content-coding HTTP-response-timeout HTTP-upgrade-failed HTTP-protocol-error loop-detected
	configuration-error internal-error`)

func errorOf(index uint8, host string) error {
	code := codes[index]
	why := "the request to " + host + " failed: " + code
	switch code {
	case "HTTP-request-denied":
		why = "the request to " + host + " is refused: the plugin's allowed_hosts do not allow it, " +
			"or max_requests were made"
	case "destination-IP-prohibited":
		why = "the request to " + host + " is refused: its address is not public"
	case "HTTP-request-URI-invalid":
		why = "the url has characters that it cannot have"
	case "HTTP-request-body-size":
		why = "the request is larger than the plugin's max_request_body"
	case "HTTP-response-body-size":
		why = "the response is larger than the plugin's max_response_body"
	case "HTTP-response-timeout", "connection-read-timeout", "connection-write-timeout":
		why = host + " did not answer in time"
	case "connection-timeout":
		why = host + " could not be reached in time"
	case "connection-refused":
		why = host + " refuses connections"
	case "connection-terminated", "HTTP-response-incomplete":
		why = host + " ended the connection too early"
	case "DNS-error", "DNS-timeout":
		why = host + " could not be looked up"
	case "TLS-certificate-error":
		why = "the certificate of " + host + " is not trusted"
	}
	return failure(code, why)
}
