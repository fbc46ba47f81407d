// A guest in Go that panics in every task.
package main

import "guest/tqhost"

func work(*tqhost.Task) (any, error) { panic("boom in Go") }

func init() { tqhost.Handle(work) }

func main() {}
