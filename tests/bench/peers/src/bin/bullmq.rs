//! The Rust port of BullMQ (`bullmq-official`).
//!
//! In: the orders of `peers`. Out: tasks, and their times. It has the defaults, with two exceptions: the
//! concurrency, and completed jobs, which are removed as in the other programs.

use bullmq::options::RedisConnectionOptions;
use bullmq::types::RemoveOnFinish;
use bullmq::worker::{CancellationToken, WorkerEvent};
use bullmq::{BulkJob, Job, Queue, QueueOptions, Worker, WorkerOptions};
use peers::{Error, Order, end_with_stdin, made_at, note, payload, redis_url};
use serde_json::{Value, json};

const QUEUE: &str = "bench";
const CONCURRENCY: usize = 100;

fn made(payload: &Value) -> u64 {
    made_at(payload.as_str().unwrap_or_default().as_bytes())
}

async fn run(job: Job, _: CancellationToken) -> Result<Value, bullmq::Error> {
    let payload = job.data()["payload"].clone();
    note("started", made(&payload));
    Ok(payload)
}

async fn work(connection: RedisConnectionOptions) -> Result<(), Error> {
    let options = WorkerOptions::new()
        .connection(connection)
        .concurrency(CONCURRENCY)
        .remove_on_complete(RemoveOnFinish::Count(0));
    let worker = Worker::with_options(QUEUE, run, options).await?;
    // An event comes after the reply of the script that completed the job. The events have to be read.
    while let Some(event) = worker.next_event().await {
        match event {
            WorkerEvent::Completed { result, .. } => note("done", made(&result)),
            WorkerEvent::Failed { error, .. } | WorkerEvent::Error(error) => eprintln!("{error}"),
            _ => {}
        }
    }
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Error> {
    let order = Order::from_args()?;
    let connection = RedisConnectionOptions::new().url(redis_url()?);
    if let Order::Work(_) = order {
        end_with_stdin();
        return work(connection).await;
    }
    let queue = Queue::with_options(QUEUE, QueueOptions::new().connection(connection)).await?;
    let job = || json!({ "payload": payload() });
    let added = order.enqueue(async |tasks| {
        if tasks == 1 {
            queue.add("task", job()).await?;
        } else {
            queue.add_bulk((0..tasks).map(|_| BulkJob::new("task", job())).collect()).await?;
        }
        Ok(())
    });
    added.await
}
