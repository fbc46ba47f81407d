//! Sends spans to the collector: OTLP over HTTP, in protobuf.
//!
//! In: spans in a bounded queue, from any thread. Out: one POST at a time, with up to [`BATCH`] spans.
//!
//! If the collector does not answer, the same spans are sent again after growing pauses. Meanwhile the queue
//! fills, and spans that find no room are dropped (`traces`). Spans that the collector refuses are dropped,
//! too. Trouble is logged once, and then once in [`TELL_AGAIN`] at most.
//!
//! Not here: making spans, the settings of the collector (`config::telemetry`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Message};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::span::{Span, attribute};
use super::traces::{SpanCounts, Traces};
use crate::chain::chain;
use crate::config::Telemetry;
use crate::https::{self, HttpsClient};
use crate::tls::{self, Trust};

/// Spans that may wait. A span takes about a kilobyte, and one with all the links that it may have takes 5.
const ROOM: usize = 8192;
/// The most spans in one request.
const BATCH: usize = 512;
/// How long the first span of a request waits for others.
const GATHER: Duration = Duration::from_millis(500);
/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after the first try of a request. Each further pause is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The shortest time between two lines of the log about trouble.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// The most bytes of an answer that are read.
const MAX_ANSWER: usize = 64 << 10;

/// The sending of spans, until it is finished.
#[derive(Debug, Default)]
pub(crate) struct TraceExport {
    pub(crate) traces: Traces,
    sending: Option<(CancellationToken, JoinHandle<()>)>,
}

impl TraceExport {
    /// Begins to send, if the configuration names a collector. `instance` is the name of this host.
    pub(crate) fn start(settings: Option<&Telemetry>, instance: Option<&str>) -> anyhow::Result<TraceExport> {
        let Some(settings) = settings else { return Ok(TraceExport::default()) };
        let (sender, spans) = mpsc::channel(ROOM);
        let counts = Arc::<SpanCounts>::default();
        let exporter = Exporter::new(settings, instance, spans, counts.clone())?;
        let stop = CancellationToken::new();
        let sending = tokio::spawn(exporter.run(stop.clone()));
        let traces = Traces::over(sender, settings.sample, settings.max_traces, counts);
        Ok(TraceExport { traces, sending: Some((stop, sending)) })
    }

    /// Sends the spans that are left, for `limit` at most. Returns false if that was too short.
    pub(crate) async fn finish(self, limit: Duration) -> bool {
        let Some((stop, mut sending)) = self.sending else { return true };
        stop.cancel();
        let is_done = timeout(limit, &mut sending).await.is_ok();
        sending.abort();
        is_done
    }
}

/// Sends the spans of a queue.
struct Exporter {
    client: HttpsClient<Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
    resource: Resource,
    spans: mpsc::Receiver<Span>,
    counts: Arc<SpanCounts>,
    /// When trouble was logged last, until a request succeeds.
    told: Option<Instant>,
}

/// The result of one request.
enum Sent {
    /// The collector has it, or does not take it.
    Done,
    /// It may succeed later. The collector may have said when.
    Later(Option<Duration>),
}

impl Exporter {
    fn new(
        settings: &Telemetry,
        instance: Option<&str>,
        spans: mpsc::Receiver<Span>,
        counts: Arc<SpanCounts>,
    ) -> anyhow::Result<Exporter> {
        let tls = tls::client(&Trust::SystemAnd(&settings.ca), None)
            .context("cannot use TLS for telemetry.otlp")?;
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let mut value = HeaderValue::try_from(value.expose())?;
            value.set_sensitive(true);
            headers.insert(HeaderName::try_from(name)?, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let text = |key, value: &str| attribute(key, any_value::Value::StringValue(value.to_owned()));
        let mut attributes =
            vec![text("service.name", &settings.service), text("service.version", env!("CARGO_PKG_VERSION"))];
        attributes.extend(instance.map(|instance| text("service.instance.id", instance)));
        let resource = Resource { attributes, ..Resource::default() };
        let client = https::client(tls);
        Ok(Exporter { client, uri: settings.otlp.parse()?, headers, resource, spans, counts, told: None })
    }

    /// Sends spans until `stop`, and then the spans that are left, as long as the collector takes them.
    async fn run(mut self, stop: CancellationToken) {
        let (mut batch, mut pause) = (Vec::with_capacity(BATCH), FIRST_PAUSE);
        loop {
            if batch.is_empty() {
                let received = self.spans.recv_many(&mut batch, BATCH);
                if stop.run_until_cancelled(received).await.is_none_or(|received| received == 0) {
                    break;
                }
                stop.run_until_cancelled(self.fill(&mut batch)).await;
            }
            let messages = self.messages(&mut batch);
            while let Sent::Later(asked) = self.send(&messages).await {
                // The collector may ask for no wait at all: by 0, or by a date that has passed.
                let wait = asked.unwrap_or(pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                    return self.end(messages).await;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            pause = FIRST_PAUSE;
        }
        self.end(Vec::new()).await;
    }

    /// Waits a moment for more spans.
    async fn fill(&mut self, batch: &mut Vec<Span>) {
        let until = Instant::now() + GATHER;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            match tokio::time::timeout_at(until, self.spans.recv_many(batch, room)).await {
                Ok(received) if received > 0 => {}
                _ => return,
            }
        }
    }

    /// Sends these messages and the spans that are left, each request once.
    async fn end(mut self, mut messages: Vec<Message>) {
        let mut batch = Vec::new();
        self.spans.close();
        loop {
            while messages.len() + batch.len() < BATCH
                && let Ok(span) = self.spans.try_recv()
            {
                batch.push(span);
            }
            messages.extend(self.messages(&mut batch));
            if messages.is_empty() {
                return;
            }
            if let Sent::Later(_) = self.send(&messages).await {
                let spans = messages.len() + self.spans.len();
                count(&self.counts.dropped, spans);
                tracing::warn!(spans, "the last spans of traces could not be sent");
                return;
            }
            messages.clear();
        }
    }

    fn messages(&self, batch: &mut Vec<Span>) -> Vec<Message> {
        batch.drain(..).map(Span::message).collect()
    }

    async fn send(&mut self, spans: &[Message]) -> Sent {
        let (status, retry_after, body) = match self.post(spans).await {
            Ok(answer) => answer,
            Err(why) => {
                self.tell(&why, spans.len(), true);
                return Sent::Later(None);
            }
        };
        if status.is_success() {
            let answer = ExportTraceServiceResponse::decode(body).unwrap_or_default();
            let partly = answer.partial_success.unwrap_or_default();
            let refused = usize::try_from(partly.rejected_spans).unwrap_or_default().min(spans.len());
            count(&self.counts.sent, spans.len() - refused);
            count(&self.counts.refused, refused);
            if refused > 0 {
                self.tell(&partly.error_message, refused, false);
            } else if self.told.take().is_some() {
                tracing::info!("the collector of traces takes spans again");
            }
            return Sent::Done;
        }
        // The statuses for which OTLP lets a client try again.
        let is_passing = matches!(status.as_u16(), 429 | 502 | 503 | 504);
        self.tell(&format!("it answers {status}"), spans.len(), is_passing);
        if is_passing {
            return Sent::Later(retry_after);
        }
        count(&self.counts.refused, spans.len());
        Sent::Done
    }

    /// Sends one request. Returns the status of the answer, the wait that it asks for, and its body. The
    /// error is for people.
    async fn post(&self, spans: &[Message]) -> Result<(StatusCode, Option<Duration>, Bytes), String> {
        let scope = InstrumentationScope {
            name: "tqhost".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans =
            vec![ScopeSpans { scope: Some(scope), spans: spans.to_vec(), ..ScopeSpans::default() }];
        let resource = Some(self.resource.clone());
        let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let mut request = Request::new(Full::new(Bytes::from(body)));
        (*request.method_mut(), *request.uri_mut()) = (http::Method::POST, self.uri.clone());
        *request.headers_mut() = self.headers.clone();
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| chain(&error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| error.to_string())?;
            Ok((head.status, retry_after(&head.headers), body.to_bytes()))
        };
        timeout(TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| Err(format!("there was no answer within {} s", TIMEOUT.as_secs())))
    }

    /// Logs why spans are not taken, unless there was such a line within [`TELL_AGAIN`]. `is_kept` says
    /// whether the spans are sent again.
    fn tell(&mut self, why: &str, spans: usize, is_kept: bool) {
        if self.told.is_some_and(|told| told.elapsed() < TELL_AGAIN) {
            return;
        }
        self.told = Some(Instant::now());
        let why: String = why.chars().filter(|c| !c.is_control()).take(200).collect();
        let collector = self.uri.authority().map(|authority| authority.as_str());
        if is_kept {
            tracing::warn!(
                collector,
                why,
                "the collector of traces does not take spans; they wait while there is room, and then some \
                 are dropped"
            );
        } else {
            tracing::warn!(collector, why, spans, "the collector of traces refuses spans; they are dropped");
        }
    }
}

fn count(counter: &AtomicU64, spans: usize) {
    counter.fetch_add(spans as u64, Ordering::Relaxed);
}

/// The time that the collector asks to wait: a number of seconds, or the time until a date. The date is
/// compared with the collector's own clock, if the answer has a `Date`.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    // Dates of HTTP are dates of RFC 2822. This parser also takes the offset `+0000` in place of `GMT`.
    const DATES: DateTimeParser = DateTimeParser::new();
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let value = text(RETRY_AFTER)?;
    if let Some(seconds) = seconds(value) {
        return Some(Duration::from_secs(seconds));
    }
    let until = DATES.parse_timestamp(value).ok()?;
    let now = text(DATE).and_then(|date| DATES.parse_timestamp(date).ok()).unwrap_or_else(Timestamp::now);
    Some(Duration::try_from(until.duration_since(now)).unwrap_or_default())
}

/// A number of seconds, whose fraction is rounded up. A number that is too large is the largest one.
fn seconds(value: &str) -> Option<u64> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    let rest = u64::from(fraction.bytes().any(|digit| digit != b'0'));
    Some(whole.parse().unwrap_or(u64::MAX).saturating_add(rest))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::telemetry::context::TraceContext;
    use crate::telemetry::span::SpanKind;

    /// Traces whose spans are kept, for tests.
    pub(in crate::telemetry) fn kept(sample: f64) -> (Traces, mpsc::Receiver<Span>) {
        kept_at_rate(sample, u32::MAX)
    }

    pub(in crate::telemetry) fn kept_at_rate(sample: f64, max_traces: u32) -> (Traces, mpsc::Receiver<Span>) {
        let (sender, spans) = mpsc::channel(16);
        (Traces::over(sender, sample, max_traces, Arc::default()), spans)
    }

    #[test]
    fn spans_without_room_are_not_built_but_counted() {
        let (sender, spans) = mpsc::channel(1);
        let traces = Traces::over(sender, 1.0, u32::MAX, Arc::default());
        let mut built = 0;
        for _ in 0..3 {
            traces.record(|| {
                built += 1;
                let context = TraceContext::root(true);
                Span::new("n".to_owned(), SpanKind::Internal, context, None, SystemTime::now())
            });
        }
        assert_eq!((built, spans.len()), (1, 1));
        assert_eq!(traces.counts(), [("sent", 0), ("refused", 0), ("dropped", 2)]);
        assert_eq!(Traces::default().counts(), [("sent", 0), ("refused", 0), ("dropped", 0)]);
    }

    #[test]
    fn the_collector_says_when_to_come_again() {
        let date = "Tue, 28 Jul 2026 10:00:10 GMT";
        for (value, seconds) in [
            (" 7 ", Some(7)),
            ("20.0", Some(20)),
            ("1.5", Some(2)),
            ("99999999999999999999", Some(u64::MAX)),
            ("Tue, 28 Jul 2026 10:00:30 GMT", Some(20)),
            ("Tue, 28 Jul 2026 10:00:30 +0000", Some(20)),
            ("Tue, 28 Jul 2026 10:00:30 UTC", Some(20)),
            ("Tue, 28 Jul 2026 10:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
            ("1.", None),
            ("", None),
        ] {
            let headers = [(RETRY_AFTER, value), (DATE, date)];
            let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
            let found = retry_after(&HeaderMap::from_iter(headers));
            assert_eq!(found, seconds.map(Duration::from_secs), "{value:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
        let far = HeaderValue::from_static("Tue, 31 Dec 2999 23:59:59 GMT");
        let found = retry_after(&HeaderMap::from_iter([(RETRY_AFTER, far)]));
        assert!(found > Some(LONGEST_PAUSE), "{found:?}");
    }
}
