//! apalis-redis, with the batch size and the concurrency that its documents name for throughput.
//!
//! In: the orders of `peers`. Out: tasks, and their times. Two properties of apalis-redis 1.0.0 would make a
//! run impossible, and are worked around. It first puts jobs that are due at once among the delayed ones, and
//! moves all of them with one `unpack`, which Lua refuses from about 8,000 on; so `fill` moves each chunk
//! itself. And a worker without jobs polls every 30 s, with its heartbeat; here it polls every 10 ms.

use std::time::Duration;

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use peers::{Error, Order, end_with_stdin, made_at, note, payload, redis_url};

const POLL: Duration = Duration::from_millis(10);
const BATCH: usize = 100;
const CONCURRENCY: usize = 100;

const MOVE: &str = "local due = redis.call('ZRANGE', KEYS[1], 0, -1) \
    if #due > 0 then redis.call('RPUSH', KEYS[2], unpack(due)) redis.call('DEL', KEYS[1]) end return #due";

async fn storage() -> Result<RedisStorage<String>, Error> {
    let connection = apalis_redis::connect(redis_url()?).await?;
    Ok(RedisStorage::new(connection).with_config(Config::default().queue("bench").batch_size(BATCH)))
}

async fn run(job: String) -> Result<String, BoxDynError> {
    note("started", made_at(job.as_bytes()));
    Ok(job)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Error> {
    let order = Order::from_args()?;
    let mut storage = storage().await?;
    if let Order::Work(_) = order {
        end_with_stdin();
        let worker = WorkerBuilder::new("bench")
            .backend(storage.poll_with_interval(POLL))
            .concurrency(CONCURRENCY)
            .build(run);
        return Ok(worker.run().await?);
    }
    let (delayed, active) =
        (storage.get_config().scheduled_jobs_set(), storage.get_config().active_jobs_list());
    let moved = order.enqueue(async |tasks| {
        if tasks == 1 {
            return Ok(storage.push(payload()).await?);
        }
        storage.push_bulk((0..tasks).map(|_| payload()).collect()).await?;
        let mut moving = redis::cmd("EVAL");
        moving.arg(MOVE).arg(2).arg(&delayed).arg(&active);
        moving.query_async::<()>(storage.get_connection()).await?;
        Ok(())
    });
    moved.await
}
