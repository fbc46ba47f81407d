//! ChasquiMQ, with the settings of its own benchmark: batches of 256, 100 jobs at once, no delayed and no
//! repeated jobs.
//!
//! In: the orders of `peers`; `work quiet` runs without events, of which there are two for each job. Out:
//! tasks, and their times. It has one thread, as a second one makes it slower on two cores.

use chasquimq::{Bytes, Consumer, ConsumerConfig, HandlerError, Job, Producer, ProducerConfig};
use peers::{Error, Order, end_with_stdin, made_at, note, payload, redis_url};
use tokio_util::sync::CancellationToken;

const QUEUE: &str = "bench";

async fn run(job: Job<String>) -> Result<Bytes, HandlerError> {
    note("started", made_at(job.payload.as_bytes()));
    Ok(Bytes::from(job.payload))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let order = Order::from_args()?;
    if let Order::Work(args) = order {
        end_with_stdin();
        let config = ConsumerConfig {
            queue_name: QUEUE.into(),
            batch: 256,
            concurrency: 100,
            ack_batch: 256,
            ack_idle_ms: 2,
            events_enabled: !args.iter().any(|arg| arg == "quiet"),
            delayed_enabled: false,
            run_scheduler: false,
            ..ConsumerConfig::default()
        };
        let consumer = Consumer::<String>::new(redis_url()?, config);
        return Ok(consumer.run(run, CancellationToken::new()).await?);
    }
    let config = ProducerConfig { queue_name: QUEUE.into(), ..ProducerConfig::default() };
    let producer = Producer::<String>::connect(&redis_url()?, config).await?;
    let added = order.enqueue(async |tasks| {
        if tasks == 1 {
            producer.add(payload()).await?;
        } else {
            producer.add_bulk((0..tasks).map(|_| payload()).collect()).await?;
        }
        Ok(())
    });
    added.await
}
