//! Splits a document of a knowledge base into chunks, and writes each with its vector as a Redis hash.
//!
//! In: a task with the fields `knowledgeBaseId`, `documentId` (the configuration may name others), `content`
//! (Markdown or plain text), and optionally `title`. Out: the records of `store`, which replace those of an
//! earlier run of the document.
//!
//! A document whose chunks fit into one commit is written by its own task. A larger one is divided: its task
//! keeps the parts in the plugin's state, and starts a flow of tasks for its own queue. All chunks get a new
//! generation, and the last task of the flow makes this generation the live one:
//!
//! ```text
//! small:  content ─▶ chunks ─▶ vectors ─▶ records, live ─▶ old chunks deleted
//! large:  content ─▶ chunks ─▶ parts ─▶ a task each: vectors ─▶ records ─┐
//!                                       switch: live ─▶ old chunks deleted ◀┘ once all are written
//! ```
//!
//! Readers see the old generation until the new one is complete. If one part fails for good, the flow fails,
//! and the old generation stays live.
//!
//! Not here: reading PDF or Word files, and the index of the vectors (README.md).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tqhost_handler::http::{Error, Request, Response};
use tqhost_handler::outbox::{self, NewTask};
use tqhost_handler::{
    Failure, FieldError, Json, Task, config, context, handler, log, progress, records, state,
};

pub mod embed;
pub mod hashed;
pub mod parts;
pub mod sentences;
pub mod split;
pub mod store;

use embed::Method;
use model_server::{setting, wrong};
use parts::Part;
use split::{Chunk, Sizes};
use store::{Document, Generation, Keys, Names};

/// The field that the handler's own tasks have instead of `content`.
const STEP: &str = "vectorizeStep";
/// The most bytes of a document. All its parts are kept by one commit, which has 8 MiB.
const MAX_CONTENT: usize = 4_000_000;
/// The most characters of a title, which every chunk repeats.
const MAX_TITLE: usize = 500;
/// The most effects of one commit, and the most bytes of their names and values, less some room for the
/// document's record and a task. A commit has 8 MiB: the other half is for the 400 bytes that each effect and
/// each field counts beside them.
const MAX_EFFECTS: usize = 998;
const MAX_BYTES: usize = (4 << 20) - (64 << 10);
/// The most old chunks that one commit deletes.
const MAX_DELETED: usize = 500;
/// How long a part waits for its task, which may be a dead letter that somebody requeues.
const PART_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The plugin's configuration.
pub struct Settings {
    prefix: String,
    /// The fields of producers' tasks. The handler's own tasks have those of `Names::default`.
    names: Names,
    sizes: Sizes,
    method: Method,
}

impl Settings {
    pub fn read(get: impl Fn(&str) -> Result<Option<String>, Failure>) -> Result<Settings, Failure> {
        let prefix = setting(&get, "prefix")?.unwrap_or_else(|| "kb:{kb}".to_owned());
        if prefix.len() > 100 {
            return Err(wrong("prefix", "at most 100 bytes"));
        }
        let number = |key: &str, default: usize, most: usize, must: &str| match setting(&get, key)?
            .map(|text| text.parse())
        {
            None => Ok(default),
            Some(Ok(number)) if number <= most => Ok(number),
            Some(_) => Err(wrong(key, must)),
        };
        let chunk = number("chunk_characters", 800, 10_000, "a whole number from 100 to 10000")?;
        if chunk < 100 {
            return Err(wrong("chunk_characters", "a whole number from 100 to 10000"));
        }
        let must = "a whole number, at most half of `chunk_characters`";
        let overlap = number("overlap_characters", (chunk / 2).min(120), chunk / 2, must)?;
        let Names { kb, document } = Names::default();
        let names = Names {
            kb: setting(&get, "knowledge_base_field")?.unwrap_or(kb),
            document: setting(&get, "document_field")?.unwrap_or(document),
        };
        Ok(Settings { prefix, names, sizes: Sizes { chunk, overlap }, method: Method::read(get)? })
    }
}

/// The facts that all tasks of one run share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    generation: Generation,
    method: String,
    dimensions: usize,
    characters: usize,
    title: String,
}

/// The work of a task of the handler's own.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Step {
    /// Writes the chunks of a part.
    Part { part: usize, run: Run },
    /// Makes the generation the live one, when all parts are written.
    Switch { run: Run },
    /// Deletes chunks of old generations.
    Sweep,
}

/// The result of a task.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub knowledge_base_id: String,
    pub document_id: String,
    pub outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
    pub method: String,
    /// The chunks that this task has written, or will have written when the flow has ended.
    pub chunks: usize,
    /// The tasks that write the chunks of a large document.
    pub parts: usize,
    /// The chunks of old generations that this task has deleted.
    pub deleted: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The new chunks are the live ones.
    Live,
    /// Other tasks write the chunks. The old chunks are live until then.
    Started,
    /// The chunks of a part are written.
    Written,
    /// Nothing was done, because a later run of the document is live.
    Superseded,
    /// Old chunks were deleted.
    Swept,
}

pub fn vectorize(task: Task) -> Result<Json<Report>, Failure> {
    let settings = Settings::read(config::get)?;
    vectorize_with(&task, &settings, Request::send).map(Json)
}

/// Runs one task. `send` makes requests.
pub fn vectorize_with(
    task: &Task,
    settings: &Settings,
    send: impl FnMut(&Request) -> Result<Response, Error>,
) -> Result<Report, Failure> {
    let step = task.text_opt(STEP)?;
    let names = step.map_or_else(|| settings.names.clone(), |_| Names::default());
    let keys = Keys::of(task, &settings.prefix, &names)?;
    let now_ms = model_server::now_ms(task);
    let mut work = Work { task, settings, names, keys, now_ms, send };
    match step {
        None => work.start(),
        Some(_) => match task.json(STEP)? {
            Step::Part { part, run } => work.part(part, &run),
            Step::Switch { run } => work.switch(&run),
            Step::Sweep => {
                let mut document = Document::read(&work.keys)?;
                let deleted = work.sweep(&mut document, MAX_DELETED, &[])?;
                Ok(Report { deleted, ..work.report(Outcome::Swept, None) })
            }
        },
    }
}

/// One task with what it needs.
struct Work<'a, S> {
    task: &'a Task,
    settings: &'a Settings,
    names: Names,
    keys: Keys,
    now_ms: u64,
    send: S,
}

impl<S: FnMut(&Request) -> Result<Response, Error>> Work<'_, S> {
    /// Splits the document, and writes it or starts a flow that does.
    fn start(&mut self) -> Result<Report, Failure> {
        let content = self.task.text("content")?;
        let title = self.task.text_opt("title")?.unwrap_or_default().trim();
        check(content, title)?;
        let generation = generation_of(self.task);
        let mut document = Document::read(&self.keys)?;
        if document.is_newer_than(&generation) {
            return Ok(self.report(Outcome::Superseded, None));
        }
        let chunks = split::split(content, self.settings.sizes);
        progress(5, &format!("{} chunks", chunks.len()));

        // The first vectors tell how large the others are, and how long they take.
        let method = &self.settings.method;
        let before = context::remaining();
        let (first, rest) = chunks.split_at(method.batch().min(chunks.len()));
        let mut vectors = self.embed(content, title, first)?;
        let took = before.saturating_sub(context::remaining());
        let run = Run {
            generation: Generation { id: generation, chunks: chunks.len() },
            method: method.label(),
            dimensions: vectors.first().map_or(0, Vec::len),
            characters: content.chars().count(),
            title: title.to_owned(),
        };
        let room = run.room(&self.keys);
        let bytes = |chunk: &Chunk| chunk.range.len() + chunk.heading.len() + room;
        let requests = u32::try_from(rest.len().div_ceil(method.batch())).unwrap_or(u32::MAX);
        if chunks.len() > MAX_EFFECTS
            || chunks.iter().map(bytes).sum::<usize>() > MAX_BYTES
            || took.saturating_mul(requests) > context::remaining().mul_f32(0.8)
        {
            return self.divide(content, &chunks, bytes, run, &mut document);
        }
        for (n, batch) in rest.chunks(method.batch()).enumerate() {
            progress(percent(n + 1, requests as usize + 1), "vectors");
            vectors.extend(self.embed(content, title, batch)?);
        }
        self.put(content, 0, &chunks, &vectors, &run)?;
        self.live(document, &run, MAX_EFFECTS - chunks.len())
    }

    /// Keeps the parts of the document, and starts a task for each.
    fn divide(
        &mut self,
        content: &str,
        chunks: &[Chunk],
        bytes: impl Fn(&Chunk) -> usize,
        run: Run,
        document: &mut Document,
    ) -> Result<Report, Failure> {
        let parts = parts::divide(chunks, bytes);
        for (n, part) in parts.iter().enumerate() {
            state::set_for(&part_key(&run, n), parts::encode(content, chunks, part.clone()), PART_KEPT)?;
        }
        document.begin(run.generation.clone());
        document.write(&self.keys, &[])?;
        let children = (0..parts.len()).map(|part| self.step(&Step::Part { part, run: run.clone() }));
        outbox::fan_out(children, self.step(&Step::Switch { run: run.clone() }))?;
        log::info(format_args!("{} chunks are written by {} tasks", chunks.len(), parts.len()));
        Ok(Report { parts: parts.len(), ..self.report(Outcome::Started, Some(&run)) })
    }

    fn part(&mut self, number: usize, run: &Run) -> Result<Report, Failure> {
        let key = part_key(run, number);
        if Document::read(&self.keys)?.is_newer_than(&run.generation.id) {
            state::delete(&key)?;
            return Ok(self.report(Outcome::Superseded, Some(run)));
        }
        let part = state::get(&key)?.as_deref().and_then(parts::decode).ok_or_else(|| {
            Failure::reject("the text of this part is no longer kept: enqueue the document again")
        })?;
        let Part { first, text, chunks } = part;
        let method = &self.settings.method;
        let mut vectors = Vec::new();
        for batch in chunks.chunks(method.batch()) {
            progress(percent(vectors.len(), chunks.len()), "vectors");
            vectors.extend(self.embed(&text, &run.title, batch)?);
        }
        let found = (method.label(), vectors.first().map_or(0, Vec::len));
        if found != (run.method.clone(), run.dimensions) {
            return Err(Failure::reject(format_args!(
                "the vectors are now by {} with {} dimensions, the run began by {} with {}: enqueue the \
                 document again",
                found.0, found.1, run.method, run.dimensions
            )));
        }
        self.put(&text, first, &chunks, &vectors, run)?;
        state::delete(&key)?;
        Ok(Report { chunks: chunks.len(), ..self.report(Outcome::Written, Some(run)) })
    }

    fn switch(&mut self, run: &Run) -> Result<Report, Failure> {
        let mut document = Document::read(&self.keys)?;
        if document.is_newer_than(&run.generation.id) {
            document.begin(run.generation.clone());
            let deleted = self.sweep(&mut document, MAX_DELETED, &[])?;
            return Ok(Report { deleted, ..self.report(Outcome::Superseded, Some(run)) });
        }
        self.live(document, run, MAX_DELETED)
    }

    /// Makes the run's generation the live one, and deletes at most `room` old chunks.
    fn live(&mut self, mut document: Document, run: &Run, room: usize) -> Result<Report, Failure> {
        document.switch(run.generation.clone());
        let fields = [
            ("title", run.title.clone()),
            ("method", run.method.clone()),
            ("dimensions", run.dimensions.to_string()),
            ("characters", run.characters.to_string()),
            ("updatedAt", self.now_ms.to_string()),
        ];
        let deleted = self.sweep(&mut document, room.min(MAX_DELETED), &fields)?;
        log::info(format_args!("{} chunks by {} are live", run.generation.chunks, run.method));
        Ok(Report { deleted, ..self.report(Outcome::Live, Some(run)) })
    }

    /// Deletes old chunks and writes the document's record. A task of its own deletes what is left.
    fn sweep(
        &self,
        document: &mut Document,
        most: usize,
        fields: &[(&str, String)],
    ) -> Result<usize, Failure> {
        let deleted = document.sweep(&self.keys, most)?;
        document.write(&self.keys, fields)?;
        if document.has_old_chunks() {
            outbox::enqueue(self.step(&Step::Sweep))?;
        }
        Ok(deleted)
    }

    /// The vectors of these chunks, which are one batch.
    fn embed(&mut self, text: &str, title: &str, batch: &[Chunk]) -> Result<Vec<Vec<f32>>, Failure> {
        let texts: Vec<String> = batch.iter().map(|chunk| in_context(text, title, chunk)).collect();
        self.settings.method.embed(&texts, self.now_ms, &mut self.send)
    }

    fn put(
        &self,
        text: &str,
        first: usize,
        chunks: &[Chunk],
        vectors: &[Vec<f32>],
        run: &Run,
    ) -> Result<(), Failure> {
        let (kb, document) = (self.task.text(&self.names.kb)?, self.task.text(&self.names.document)?);
        for ((n, chunk), vector) in (first..).zip(chunks).zip(vectors) {
            let position = n.to_string();
            let fields: [(&str, &[u8]); 9] = [
                ("knowledgeBase", kb.as_bytes()),
                ("document", document.as_bytes()),
                ("generation", run.generation.id.as_bytes()),
                ("position", position.as_bytes()),
                ("title", run.title.as_bytes()),
                ("heading", chunk.heading.as_bytes()),
                ("text", &text.as_bytes()[chunk.range.clone()]),
                ("method", run.method.as_bytes()),
                ("vector", &embed::bytes(vector)),
            ];
            records::put(&self.keys.chunk(&run.generation.id, n), fields)?;
        }
        Ok(())
    }

    /// A task for this queue.
    fn step(&self, step: &Step) -> NewTask {
        let own = Names::default();
        let step = serde_json::to_string(step).unwrap_or_default();
        let task = NewTask::new(&self.task.queue).field(own.kb, self.id(&self.names.kb));
        task.field(own.document, self.id(&self.names.document)).field(STEP, step)
    }

    fn id(&self, field: &str) -> String {
        self.task.text(field).unwrap_or_default().to_owned()
    }

    fn report(&self, outcome: Outcome, run: Option<&Run>) -> Report {
        let chunks = match outcome {
            Outcome::Superseded | Outcome::Swept => 0,
            _ => run.map_or(0, |run| run.generation.chunks),
        };
        Report {
            knowledge_base_id: self.id(&self.names.kb),
            document_id: self.id(&self.names.document),
            outcome,
            generation: run.map(|run| run.generation.id.clone()),
            method: self.settings.method.label(),
            chunks,
            parts: 0,
            deleted: 0,
        }
    }
}

impl Run {
    /// The bytes of a chunk's record beside its text and its heading.
    fn room(&self, keys: &Keys) -> usize {
        // The ids come twice: in the key and, without escapes, in the fields. The rest is for fields' names.
        let key = keys.chunk(&self.generation.id, usize::MAX).len();
        2 * key + self.title.len() + self.method.len() + 4 * self.dimensions + 200
    }
}

/// The later a task was enqueued, the greater is its generation. All attempts of a task have the same one.
fn generation_of(task: &Task) -> String {
    format!("{:013}-{:08x}", task.enqueued_at_ms, hashed::hash(&task.id) >> 32)
}

fn part_key(run: &Run, part: usize) -> String {
    format!("part:{}:{part}", run.generation.id)
}

fn percent(done: usize, all: usize) -> u8 {
    u8::try_from(5 + done * 90 / all.max(1)).unwrap_or(100)
}

/// A chunk with its title and headings, which tell the model what the text is about.
fn in_context(text: &str, title: &str, chunk: &Chunk) -> String {
    let parts = [title, &chunk.heading, &text[chunk.range.clone()]];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

fn check(content: &str, title: &str) -> Result<(), FieldError> {
    if content.len() > MAX_CONTENT {
        return Err(FieldError::invalid(
            "content",
            format_args!("has {} bytes, more than {MAX_CONTENT}: divide the document", content.len()),
        ));
    }
    if content.contains('\0') {
        return Err(FieldError::invalid("content", "is binary, not text"));
    }
    if content.trim().is_empty() {
        return Err(FieldError::invalid("content", "is empty"));
    }
    if title.chars().count() > MAX_TITLE {
        return Err(FieldError::invalid("title", format_args!("has more than {MAX_TITLE} characters")));
    }
    Ok(())
}

handler!(vectorize);
