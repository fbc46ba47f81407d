package http

import (
	"encoding/binary"
	"unsafe"

	"example.com/{{MODULE}}/tqhost"
)

// This file has the functions of wasi:http that the transport calls.

// area is where the host writes the result of a call.
type area [16]uint64

var sink any

// newArea makes an area outside of the stack, because a stack can move during a call.
func newArea() *area {
	made := new(area)
	sink = made
	return made
}

func (area *area) bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(area)), 128) }

func (area *area) tag(at int) uint8 { return area.bytes()[at] }

func (area *area) u32(at int) uint32 { return binary.LittleEndian.Uint32(area.bytes()[at:]) }

func (area *area) u64(at int) uint64 { return binary.LittleEndian.Uint64(area.bytes()[at:]) }

func (area *area) list(at int) []byte { return tqhost.Take(area.u32(at), area.u32(at+4)) }

// pairs reads a list of pairs of texts.
func (area *area) pairs(at int) [][2]string {
	count := area.u32(at + 4)
	content := tqhost.Take(area.u32(at), count*16)
	pairs := make([][2]string, count)
	for index := range pairs {
		word := func(n int) uint32 { return binary.LittleEndian.Uint32(content[index*16+n*4:]) }
		pairs[index] = [2]string{string(tqhost.Take(word(0), word(1))), string(tqhost.Take(word(2), word(3)))}
	}
	return pairs
}

// poll waits for one of two pollables, and says whether the first one is ready and the second one is not.
func poll(ready, timer uint32) bool {
	both := []uint32{ready, timer}
	sink = both
	to := newArea()
	tqhost.Call(func() { pollList(&both[0], 2, to) })
	content := tqhost.Take(to.u32(0), to.u32(4)*4)
	for at := 0; at < len(content); at += 4 {
		if binary.LittleEndian.Uint32(content[at:]) == 1 {
			return false
		}
	}
	return true
}

//go:wasmimport wasi:io/poll@0.2.3 poll
func pollList(list *uint32, count uint32, to *area)

//go:wasmimport wasi:io/poll@0.2.3 [resource-drop]pollable
func dropPollable(pollable uint32)

//go:wasmimport wasi:io/error@0.2.3 [resource-drop]error
func dropError(failed uint32)

//go:wasmimport wasi:clocks/monotonic-clock@0.2.3 subscribe-duration
func subscribeDuration(nanoseconds uint64) uint32

//go:wasmimport wasi:io/streams@0.2.3 [method]input-stream.read
func streamRead(stream uint32, length uint64, to *area)

//go:wasmimport wasi:io/streams@0.2.3 [method]input-stream.subscribe
func inputSubscribe(stream uint32) uint32

//go:wasmimport wasi:io/streams@0.2.3 [resource-drop]input-stream
func dropInput(stream uint32)

//go:wasmimport wasi:io/streams@0.2.3 [method]output-stream.check-write
func streamCheckWrite(stream uint32, to *area)

//go:wasmimport wasi:io/streams@0.2.3 [method]output-stream.write
func streamWrite(stream uint32, content string, to *area)

//go:wasmimport wasi:io/streams@0.2.3 [method]output-stream.subscribe
func outputSubscribe(stream uint32) uint32

//go:wasmimport wasi:io/streams@0.2.3 [resource-drop]output-stream
func dropOutput(stream uint32)

//go:wasmimport wasi:http/types@0.2.3 [constructor]fields
func newFields() uint32

//go:wasmimport wasi:http/types@0.2.3 [method]fields.append
func fieldsAppend(fields uint32, name, value string, to *area)

//go:wasmimport wasi:http/types@0.2.3 [method]fields.entries
func fieldsEntries(fields uint32, to *area)

//go:wasmimport wasi:http/types@0.2.3 [resource-drop]fields
func dropFields(fields uint32)

//go:wasmimport wasi:http/types@0.2.3 [constructor]outgoing-request
func newRequest(fields uint32) uint32

//go:wasmimport wasi:http/types@0.2.3 [method]outgoing-request.body
func requestBody(request uint32, to *area)

//go:wasmimport wasi:http/types@0.2.3 [method]outgoing-request.set-method
func requestSetMethod(request, method uint32, other string) uint32

//go:wasmimport wasi:http/types@0.2.3 [method]outgoing-request.set-path-with-query
func requestSetPath(request, has uint32, path string) uint32

//go:wasmimport wasi:http/types@0.2.3 [method]outgoing-request.set-scheme
func requestSetScheme(request, has, scheme uint32, other string) uint32

//go:wasmimport wasi:http/types@0.2.3 [method]outgoing-request.set-authority
func requestSetAuthority(request, has uint32, authority string) uint32

//go:wasmimport wasi:http/types@0.2.3 [method]incoming-response.status
func responseStatus(response uint32) uint32

//go:wasmimport wasi:http/types@0.2.3 [method]incoming-response.headers
func responseHeaders(response uint32) uint32

//go:wasmimport wasi:http/types@0.2.3 [method]incoming-response.consume
func responseConsume(response uint32, to *area)

//go:wasmimport wasi:http/types@0.2.3 [resource-drop]incoming-response
func dropResponse(response uint32)

//go:wasmimport wasi:http/types@0.2.3 [method]incoming-body.stream
func bodyStream(body uint32, to *area)

//go:wasmimport wasi:http/types@0.2.3 [resource-drop]incoming-body
func dropIncoming(body uint32)

//go:wasmimport wasi:http/types@0.2.3 [method]outgoing-body.write
func bodyWrite(body uint32, to *area)

//go:wasmimport wasi:http/types@0.2.3 [static]outgoing-body.finish
func bodyFinish(body, hasTrailers, trailers uint32, to *area)

//go:wasmimport wasi:http/types@0.2.3 [resource-drop]outgoing-body
func dropBody(body uint32)

//go:wasmimport wasi:http/types@0.2.3 [method]future-incoming-response.subscribe
func futureSubscribe(future uint32) uint32

//go:wasmimport wasi:http/types@0.2.3 [method]future-incoming-response.get
func futureGet(future uint32, to *area)

//go:wasmimport wasi:http/types@0.2.3 [resource-drop]future-incoming-response
func dropFuture(future uint32)

//go:wasmimport wasi:http/types@0.2.3 http-error-code
func errorCode(failed uint32, to *area)

//go:wasmimport wasi:http/outgoing-handler@0.2.3 handle
func handle(request, hasOptions, options uint32, to *area)
