//! A component that is not a handler: it exports only `tqhost:testing/greeter`. The host must refuse to load
//! it.
#![cfg(target_family = "wasm")]

wit_bindgen::generate!({
    path: ["../../wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
    world: "tqhost:testing/greeting",
    generate_all,
});

struct Greeter;

impl exports::tqhost::testing::greeter::Guest for Greeter {
    fn greet(name: String) -> String {
        format!("Hello, {name}")
    }
}

export!(Greeter);
