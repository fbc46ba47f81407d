module example.com/tqhost-client/conformance

go 1.24

require (
	example.com/tqhost-client v0.0.0
	github.com/gomodule/redigo v1.8.3
)

replace example.com/tqhost-client => ..

// Debian's package golang-github-gomodule-redigo-dev.
replace github.com/gomodule/redigo => /usr/share/gocode/src/github.com/gomodule/redigo
