// The client depends on nothing. Its driver, `conformance`, is a module of its own.
module example.com/tqhost-client

go 1.24
