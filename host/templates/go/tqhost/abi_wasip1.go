package tqhost

import (
	"encoding/binary"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"unsafe"
)

// This file has how values pass between Go and the host, by the component model's canonical ABI.

// While the host asks for memory, the component may call nothing outside of it. A collection would: it reads
// the clock, and so does a heap that grows beyond the goal of the last one. So the collector rests while a
// call of the host may ask for memory, and between two tasks.

var (
	// One goroutine at a time calls the host.
	calling sync.Mutex
	percent = 100
	cycles  = []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
)

func rest() {
	before := collected()
	// This waits for a collection that runs.
	if told := debug.SetGCPercent(-1); told >= 0 {
		percent = told
	}
	if collected() != before {
		// It has noted the goal of a collector that rests. Another one notes a real goal.
		debug.SetGCPercent(percent)
		runtime.GC()
		debug.SetGCPercent(-1)
	}
}

func collected() uint64 {
	metrics.Read(cycles)
	return cycles[0].Value.Uint64()
}

func wake() { debug.SetGCPercent(percent) }

// Call calls a function of the host that writes texts or lists.
func Call(function func()) {
	calling.Lock()
	defer calling.Unlock()
	rest()
	function()
	wake()
}

// call calls a function of the host that writes its result to an area.
func call(function func(*area)) *area {
	to := newArea()
	Call(func() { function(to) })
	return to
}

// given holds what the host has written into this memory, by address, until it is taken.
var given = map[uint32][]byte{}

// The host asks for memory with this function: for arguments of an export and for results of an import.
//
//go:wasmexport cabi_realloc
func realloc(old, oldSize, align, size uint32) uint32 {
	if size == 0 {
		return align
	}
	// The elements are of 8 bytes, for the alignment.
	words := make([]uint64, (size+7)/8)
	content := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
	if oldSize > 0 {
		copy(content, given[old][:oldSize])
		delete(given, old)
	}
	address := uint32(uintptr(unsafe.Pointer(&words[0])))
	given[address] = content
	return address
}

// The memory of the adapter of wasip1, which needs its stack and its state before the runtime has started.
var adapter struct {
	pages [2 << 16]byte
	taken uint32
}

//go:wasmexport cabi_realloc_adapter
//go:nosplit
func reallocAdapter(old, oldSize, align, size uint32) uint32 {
	begin := (uint32(uintptr(unsafe.Pointer(&adapter.pages))) + adapter.taken + align - 1) &^ (align - 1)
	end := begin + size - uint32(uintptr(unsafe.Pointer(&adapter.pages)))
	if end > uint32(len(adapter.pages)) {
		return 0
	}
	adapter.taken = end
	return begin
}

// take gives what the host has written to an address.
func take(address, size uint32) []byte {
	if size == 0 {
		return nil
	}
	content := given[address]
	delete(given, address)
	return content
}

// addressOfArea is for the result of an export, which `returned` keeps.
func addressOfArea(area *area) uint32 { return uint32(uintptr(unsafe.Pointer(area))) }

// area is where the host writes the result of a call, or reads that of an export.
type area [16]uint64

// newArea makes an area outside of the stack, because the host may call back into Go, and a stack can move.
func newArea() *area {
	made := new(area)
	sink = made
	return made
}

// sink lets what is stored here escape from the stack.
var sink any

func (area *area) bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(area)), 128) }

func (area *area) tag(at int) uint8 { return area.bytes()[at] }

func (area *area) u32(at int) uint32 { return binary.LittleEndian.Uint32(area.bytes()[at:]) }

func (area *area) u64(at int) uint64 { return binary.LittleEndian.Uint64(area.bytes()[at:]) }

// list gives the bytes of a list or a text, whose address and length are here.
func (area *area) list(at int) []byte { return take(area.u32(at), area.u32(at+4)) }

func (area *area) setU32(at int, value uint32) { binary.LittleEndian.PutUint32(area.bytes()[at:], value) }

func (area *area) setU64(at int, value uint64) { binary.LittleEndian.PutUint64(area.bytes()[at:], value) }

// setList keeps a list alive with the area, and notes its address and length.
func (area *area) setList(at int, content []byte) {
	area.setU32(at, addressOf(content))
	area.setU32(at+4, uint32(len(content)))
}

// addressOf copies to memory that does not move, and keeps it until the next call of forget.
func addressOf(content []byte) uint32 {
	if len(content) == 0 {
		return 8
	}
	words := make([]uint64, (len(content)+7)/8)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(content)), content)
	lent = append(lent, words)
	return uint32(uintptr(unsafe.Pointer(&words[0])))
}

// lent holds what the host may still read.
var lent [][]uint64

func forget() { lent = lent[:0] }

// fieldsIn reads a list of fields.
func fieldsIn(address, count uint32) []Field {
	content := take(address, count*16)
	fields := make([]Field, count)
	for index := range fields {
		word := func(n int) uint32 { return binary.LittleEndian.Uint32(content[index*16+n*4:]) }
		fields[index] = Field{string(take(word(0), word(1))), take(word(2), word(3))}
	}
	return fields
}

// fieldsOut lends a list of fields to the host, and gives its address.
func fieldsOut(fields []Field) uint32 {
	var content []byte
	for _, field := range fields {
		content = appendList(content, []byte(field.Name))
		content = appendList(content, field.Value)
	}
	return addressOf(content)
}

func appendList(to, content []byte) []byte {
	to = binary.LittleEndian.AppendUint32(to, addressOf(content))
	return binary.LittleEndian.AppendUint32(to, uint32(len(content)))
}

// Take gives what the host has written to an address, for packages that call the host themselves.
func Take(address, size uint32) []byte { return take(address, size) }
