//! The binary.
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().json().flatten_event(true).with_env_filter("info,tqhost=debug").with_writer(std::io::stderr).init();
    let path = std::env::args().nth(2).unwrap();
    let config = tqhost::config::Config::load(std::path::Path::new(&path))?;
    tqhost::app::run(config).await
}
