//! A component that is no handler: it exports `tqhost:testing/greeter` only. It must be refused at load.
#![cfg(target_family = "wasm")]

wit_bindgen::generate!({
    path: ["../sdk/wit/deps/io", "../sdk/wit/deps/clocks", "../sdk/wit/deps/http", "wit"],
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
