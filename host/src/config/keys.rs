//! The keys of the configuration: what each may be, its default, and what it means.
//!
//! Readers take bounds, numbers of entries and defaults from the rows (`reader::Table::value_or_default`),
//! except where a default depends on other keys, as its meaning says. A test compares the
//! tables of docs/configuration.md and docs/configuration-queues.md with the rows, and writes them with
//! `WRITE=1`; `schema` makes the schema of them. A new key is a row here, a field in `model`, the line that
//! reads it, and a line of the page's example.
//!
//! Not here: how a value is read (`reader`), and values that are more than a number, a duration, a size or a
//! word (one file per element of the configuration).

use std::ops::RangeInclusive;

/// The default of a key that its table must have.
pub(super) const REQUIRED: &str = "required";
/// The largest number of tables with names where nothing bounds it.
const ANY_NUMBER: usize = usize::MAX;

/// The roles of tokens and users.
pub(super) const ROLES: &[&str] = &["read", "operate", "admin"];

/// One key of a table.
pub(super) struct Key {
    pub name: &'static str,
    pub values: Values,
    /// The value that holds if the key is not set, as in the file; or words for people.
    pub default: &'static str,
    /// The effect of the key, in the Markdown of the page.
    pub meaning: &'static str,
}

/// The values that may be written. Bounds are inclusive, and written as in the file.
pub(super) enum Values {
    Integer(u32, u32),
    Number(f64, f64),
    Duration(&'static str, &'static str),
    Size(&'static str, &'static str),
    /// With brackets, because rows have the form of a call.
    Boolean(),
    Words(&'static [&'static str]),
    /// A text that its own reader checks, in words for the page. Its default is a text, too.
    Text(&'static str),
    /// A table with these keys. The text says for the page which forms the value may have.
    Table(&'static Keys, &'static str),
    /// At most this number of tables with these keys, each under a name that the user gives.
    Named(&'static Keys, usize, &'static str),
    /// A list, or a table whose keys are names that the user gives, and the bounds of its number of entries;
    /// in words for the page, in which `{}` stands for these bounds.
    Many(usize, usize, &'static str),
    /// Something that its own reader checks, in words for the page.
    Other(&'static str),
}

impl Values {
    /// How many entries a list or a table with names may have.
    pub(super) fn counts(&self) -> RangeInclusive<usize> {
        match self {
            Values::Many(least, most, _) => *least..=*most,
            Values::Named(_, most, _) => 0..=*most,
            _ => 1..=1,
        }
    }

    /// How many entries there may be, in words.
    pub(super) fn counts_in_words(&self) -> String {
        match self.counts().into_inner() {
            (0, most) => format!("up to {most}"),
            (least, most) => format!("{least} to {most}"),
        }
    }

    /// The values in words, where the row has words for them.
    pub(super) fn words(&self) -> Option<String> {
        match self {
            Values::Table(_, words) | Values::Text(words) | Values::Other(words) => Some((*words).to_owned()),
            Values::Named(_, _, words) | Values::Many(_, _, words) => {
                Some(words.replace("{}", &self.counts_in_words()))
            }
            _ => None,
        }
    }
}

/// The keys of one table of the file, and the heading of its section on the page.
pub(super) struct Keys {
    heading: &'static str,
    pub known: &'static [Key],
    /// Keys that belong in another place, and what to do instead.
    elsewhere: &'static [(&'static str, &'static str)],
}

impl Keys {
    /// # Panics
    /// If there is no such key: readers ask for the keys of their own table.
    pub(super) fn key(&self, name: &str) -> &'static Key {
        let key = self.known.iter().find(|key| key.name == name);
        key.unwrap_or_else(|| panic!("{name} is not a key below {}", self.heading))
    }

    /// The text that a key has by default.
    pub(super) fn text(&self, name: &str) -> &'static str {
        let key = self.key(name);
        assert!(matches!(key.values, Values::Text(_) | Values::Words(_)), "{name} has no text by default");
        key.default
    }

    /// The highest number that a key may be.
    pub(super) fn most(&self, name: &str) -> u32 {
        let Values::Integer(_, most) = self.key(name).values else { panic!("{name} is no whole number") };
        most
    }

    /// The keys that may be written in this table. `[defaults]` has the rows of a queue, without some of
    /// them.
    pub(super) fn here(&self) -> impl Iterator<Item = &'static str> {
        let names = self.known.iter().map(|key| key.name);
        names.filter(|name| self.elsewhere.iter().all(|(other, _)| other != name))
    }

    /// Returns the way out for a key that belongs elsewhere.
    pub(super) fn instead_of(&self, name: &str) -> Option<&'static str> {
        self.elsewhere.iter().find(|(key, _)| *key == name).map(|(_, why)| *why)
    }
}

/// Tables of keys: each has a name here, and the heading of its section on the page. A row has the key, or
/// several that have all the rest in common, its values, its default, and its meaning. A row with `!` is for
/// a key that belongs elsewhere, and says what to do instead.
macro_rules! keys {
    ($($table:ident $heading:literal {
        $($($name:ident),+: $kind:ident $values:tt = $default:literal, $meaning:literal;)*
        $(! $other:ident: $why:expr;)*
    })*) => {
        $(pub(super) const $table: Keys = Keys {
            heading: $heading,
            known: &[$($(Key {
                name: stringify!($name),
                values: Values::$kind $values,
                default: $default,
                meaning: $meaning,
            }),+),*],
            elsewhere: &[$((stringify!($other), $why)),*],
        };)*

        #[cfg(test)]
        pub(super) const ALL: &[Keys] = &[$($table),*];
    };
}

keys! {
    TOP "## Top level" {
        plugins_dir: Text("path") = "plugins", "the folder of the plugins' `.wasm` files";
        data_dir: Text("path") = ".tqhost",
            "[compiled code](operations.md#what-is-in-data_dir), the private Redis, and [blobs](#blobs) \
            without a `url`; one for each `plugins_dir`";
        shutdown_grace: Duration("0s", "1d") = "30s",
            "how long running attempts may take to end at shutdown; then their tasks go back to the queue";
        concurrency: Integer(1, 100_000) = "none",
            "attempts that run at once in this host, in all queues together";
        // The minimum is the default grant of one handler.
        memory: Size("128MiB", "16384GiB") = "half of the machine's or the control group's",
            "memory of all handlers of this host together; large tasks in hand may take a quarter of it \
            beside";
        redis: Table(&REDIS, "table") = "", "where Redis is: [`[redis]`](#redis)";
        admin: Table(&ADMIN, "table") = "", "the HTTP API and the dashboard: [`[admin]`](#admin)";
        blobs: Table(&BLOBS, "table") = "", "where handlers keep files: [`[blobs]`](#blobs)";
        telemetry: Table(&TELEMETRY, "table") = "", "traces: [`[telemetry]`](#telemetry)";
        defaults: Table(&DEFAULTS, "table") = "", "the keys of all queues: [`[defaults]`](#defaults)";
        queues: Named(&QUEUE, ANY_NUMBER, "tables") = "required", "the queues: \
            [`[queues.NAME]`](configuration-queues.md#queuesname)";
        plugins: Named(&PLUGIN, ANY_NUMBER, "tables") = "",
            "grants of plugins: [`[plugins.NAME]`](#pluginsname)";
    }
    REDIS "## `[redis]`" {
        url: Other("secret, or a list of them") = "a private Redis",
            "`redis://[user:password@]host[:port][/database]`, `rediss://…` for TLS, `redis+unix:///path` \
            for a socket; a list is some nodes of a [Redis Cluster](operations.md#redis-cluster)";
        sentinel: Table(&SENTINEL, "table") = "none",
            "in place of `url`: the [Sentinels](operations.md#sentinel) that name the primary";
        wait: Duration("0s", "1h") = "30s",
            "how long a starting host waits for Redis; later outages are waited for without end";
        username, password: Other("string, secret") = "the default user",
            "the user of Redis, and its password, taken as it is; in `url`, percent-encode `/ ? # @ : %`";
        ca: Other("path") = "the system's",
            "a PEM file up to 1 MiB: the trusted certificates, in place of the system's; a [self-signed \
            one](#certificates), too";
        cert, key: Other("path") = "none",
            "PEM files of a client's certificate and private key; each needs the other";
    }
    SENTINEL "### `sentinel`" {
        master: Other("string") = "required", "the Sentinels' name of the primary, as in SENTINEL MONITOR";
        urls: Other("list of secrets") = "required",
            "the Sentinels, better all: `redis://host[:port]`, or `rediss://…` if Sentinels and Redis \
            speak TLS";
        username, password: Other("string, secret") = "none",
            "the user at the Sentinels; those of `[redis]` are for the primary";
    }
    ADMIN "## `[admin]`" {
        listen: Text("IP address and port") = "127.0.0.1:7700",
            "where the host serves [its endpoints](operations.md#endpoints); port 0 takes a free port";
        token: Other("secret of visible ASCII characters") = "none",
            "a token with the [role](operations.md#roles) `admin`. Unless `listen` is a loopback address, it \
            has 16 characters at least, and this or one of `tokens` is required";
        read_token: Other("secret, as `token`") = "none",
            "a second token, with the role `read`; needs another one beside it";
        tokens: Named(&TOKEN, 100, "table of {}") = "none",
            "[tokens with names](#tokens-with-names) and roles";
        base_path: Text("up to 100 characters") = "",
            "the path below which a proxy shows the host, such as `\"/tqhost\"`";
        trusted_user_header: Other("a name; needs a token") = "none",
            "the header in which [a proxy](operations.md#behind-a-proxy) names the user whom it has \
            logged in";
        trusted_user_role: Words(ROLES) = "read", "the role of these users";
        trusted_groups_header: Other("a name; needs `trusted_groups`") = "none",
            "the header with the user's groups, with commas between them";
        trusted_groups: Many(0, 100, "table of {}") = "none",
            "the role of each group, such as `{ sre = \"admin\", \"on call\" = \"operate\" }`; the \
            highest counts";
        trusted_proxies: Many(0, 100, "{} addresses or blocks") = "`[\"127.0.0.0/8\", \"::1\"]`",
            "the addresses from which these headers count";
        mask: Many(0, 100, "{} names of 1 to 200 bytes") = "empty",
            "fields, and keys in JSON, whose values are [hidden](#masked-fields)";
        histograms: Words(&["full", "few-buckets", "host"]) = "full",
            "the [histograms](monitoring.md#metrics): per queue, with fewer buckets (the default in a host \
            that starts with more than 100 queues), or one pair for all queues";
    }
    TOKEN "### Tokens with names" {
        role: Words(ROLES) = "required", "the rights of the token";
        hash: Other("secret") = "required", "`sha256:` and the SHA-256 of the token";
        ! token: "is not kept here: write its hash";
    }
    BLOBS "## `[blobs]`" {
        url: Other("string") = "the folder `blobs` in `data_dir`",
            "`\"file:FOLDER\"`, `\"s3://BUCKET/PREFIX\"`, `\"gs://BUCKET/PREFIX\"` or \
            `\"az://CONTAINER/PREFIX\"`; without a prefix, too";
        max_blob: Size("1KiB", "1GiB") = "16MiB", "the largest blob that a handler may write or read";
        timeout: Duration("1s", "1h") = "30s", "how long one call may take, with up to three tries again";
        endpoint: Other("string") = "the provider's",
            "the URL of a compatible server, as in `\"http://127.0.0.1:9000\"`; not for `file:`";
        ca: Other("a PEM file up to 1 MiB") = "none",
            "certificates in PEM that are trusted beside the system's; not for `file:`";
        region: Text("string") = "us-east-1", "for `s3:`";
        access_key_id, secret_access_key: Other("secret; both or none") = "see below", "for `s3:`";
        session_token: Other("secret") = "none", "for `s3:`, with these keys";
        service_account: Other("secret") = "see below", "for `gs:`: the JSON of a service account's key";
        account, account_key: Other("string, secret") = "required, see below",
            "for `az:`: the storage account";
    }
    TELEMETRY "## `[telemetry]`" {
        otlp: Other("string") = "required",
            "the address for OTLP over HTTP (protobuf), as in `\"http://collector:4318\"`; `/v1/traces` \
            is added unless it is there";
        headers: Many(0, 20, "secrets by name, {}") = "none",
            "headers of each request, as in `{ authorization = { env = \"OTLP_AUTHORIZATION\" } }`";
        sample: Number(0.0, 1.0) = "1", "the part that is sent of the traces that begin here";
        max_traces: Integer(1, 1_000_000) = "1000",
            "the most traces that begin in one second in this host and are sent, after `sample`";
        service: Text("1 to 100 bytes") = "tqhost", "the name of the service in the traces";
        ca: Other("a PEM file up to 1 MiB") = "none",
            "certificates in PEM that are trusted beside those of the system";
    }
    QUEUE "## `[queues.NAME]`" {
        stream: Other("1 to 512 bytes") = "the queue's name",
            "the Redis stream to which producers add, one per queue; braces only as one hash tag, as in \
            `\"resume:{analyze}:stream\"`";
        group: Text("1 to 512 bytes") = "tqhost", "the consumer group";
        plugin: Other("name") = "the queue's name", "the handler: `NAME.wasm` in `plugins_dir`";
        concurrency: Integer(1, 10_000) = "10", "attempts that run at once, in this host";
        batch: Table(&BATCH, "table") = "see [`batch`](#batch)",
            "how many tasks one call gives to a handler that [takes batches](handlers.md#batches)";
        priority: Integer(1, 1_000) = "1",
            "weight in the host's `concurrency`: a queue with 2 starts two attempts for each of a queue \
            with 1, while both have waiting tasks";
        lease: Duration("1s", "1d") = "30s",
            "how long a task may stay without a heartbeat before another host takes it";
        timeout: Duration("1ms", "7d") = "60s", "how long one attempt may take";
        max_retries: Integer(0, 1_000) = "3", "attempts after the first one";
        backoff: Table(&BACKOFF, "table or `\"none\"`") = "see [`backoff`](#backoff)",
            "how long a failed task waits for its next attempt";
        max_deferrals: Integer(0, 100_000) = "6", "how often a handler may defer a task";
        max_crashes: Integer(1, 1_000) = "2",
            "once two hosts (or this number, if it is smaller) have died while they ran the task, it runs \
            alone; if a host dies then, too, and this number is reached, it is dead";
        max_backlog: Integer(1, 1_000_000_000) = "100000",
            "queued, delayed, held and running tasks beyond which `tqhost enqueue` is refused; a plain \
            XADD is not, and nothing is trimmed";
        rate_limit: Other("`\"1/h\"` to `\"1000000/s\"`") = "none",
            "attempts started, in all hosts together, as in `\"100/s\"`, `\"30/m\"` or `\"10/h\"`; those \
            of a dead host's tasks count, and come first";
        hold: Table(&HOLD, "table or `\"none\"`") = "`\"none\"`",
            "when the queue [waits](#hold) because something outside is down";
        max_running: Integer(1, 100_000) = "none",
            "tasks that run at once, in all hosts together: [one at a time](#one-at-a-time)";
        order: Other("`\"strict\"`, with `max_running = 1`") = "none",
            "each task begins when the one before it has ended, retries included";
        serial: Table(&SERIAL, "table") = "none",
            "tasks with one key [run one after the other](#serial), in all hosts together";
        idempotency: Table(&IDEMPOTENCY, "table") = "see [`idempotency`](#idempotency)",
            "which tasks count as the same task";
        id: Table(&ID, "table") = "none", "a second name of each task for clients: [its alias](#id)";
        expire_after: Duration("1s", "365d") = "none",
            "a task that waited longer for its first attempt [is dead](#expire_after)";
        retention: Duration("0s", "365d") = "24h",
            "how long status and result are kept after a task's end; `\"0s\"` keeps neither";
        list: Table(&LIST, "string or table") = "none",
            "a Redis [list](#list) (producers use LPUSH) whose items become tasks, oldest first, as the \
            field `data`; they stay there while `max_backlog` is reached";
        schedule: Table(&SCHEDULE, "table") = "none", "when [the host itself](#schedule) enqueues tasks";
        enqueue_to: Other("queues of this file") = "empty",
            "the queues to which its handler may [enqueue](effects.md#outbox); while one that cannot lead \
            back here has reached its `max_backlog`, no attempt starts here, except of a dead host's tasks";
        on_end: Table(&ON_END, "name or table") = "none", "the queue that [is told](#on_end) of every end";
        events: Integer(0, 1_000_000) = "0",
            "about how many [events](#events) are kept, in the stream `tq:{STREAM}:events`";
        // settle.lua deletes at most as many at once (MOST_RECORDS).
        failed_attempts: Integer(0, 100) = "10",
            "the last failed attempts [kept](status.md#failed-attempts) of each task, with the end of \
            their log; none with `retention = \"0s\"`";
        show: Many(0, 6, "{} names: fields, or places in JSON like `data/user/id`") = "empty",
            "columns with these values in lists of tasks and dead letters";
        keep_fields: Boolean() = "false",
            "whether a completed task keeps its fields, up to 16 KiB, for the `retention`, to be shown \
            and [copied](dashboard.md#the-page-of-a-task)";
        dead_letter: Other("1 to 512 bytes") = "a key of the queue's own",
            "the stream of the dead letters, not of a queue. If the key holds something else, the queue \
            takes no task";
        ! delays: OF_BACKOFF;
    }
    BATCH "### `batch`" {
        max_tasks: Integer(1, 1_000) = "the queue's `concurrency`",
            "largest number of tasks in one call; 1 turns batches off";
        max_wait: Duration("0s", "1m") = "10ms", "how long the first task waits for others";
    }
    IDEMPOTENCY "### `idempotency`" {
        field: Other("1 to 512 bytes") = "none", "the field whose value makes the key";
        fields: Many(1, 16, "{} names of 1 to 512 bytes") = "none",
            "the fields whose values make the key together, in place of `field`";
        json: Many(1, 16, "{} pointers, at most 32 levels deep") = "none",
            "the places of the values in the JSON that `field` holds";
        window: Duration("1s", "365d") = "24h", "how long the key stays taken after the task's end";
        release_on: Words(&["window", "failure"]) = "window",
            "when the key of a dead or cancelled task is free: after the window, or at once, so that a \
            user may submit again. Then a requeue of the failed task is the duplicate, and a cancelled \
            handler may run for two seconds beside the new task";
    }
    ID "### `id`" {
        field: Other("1 to 512 bytes") = "required", "the field that holds the alias";
        json: Other("at most 32 levels deep") = "none",
            "a JSON pointer (RFC 6901) to the alias, if the field holds JSON";
    }
    BACKOFF "### `backoff`" {
        base: Duration("1ms", "30d") = "1s", "the first wait; each further wait is twice as long";
        max: Duration("1ms", "30d") = "60s", "the longest wait, at least `base`";
        jitter: Number(0.0, 1.0) = "0.2", "the largest random change of a wait, as a fraction of it";
        delays: Many(1, 100, "{} durations of `\"0s\"` to `\"30d\"`") = "none",
            "in place of the others: the n-th retry waits for the n-th, later ones for the last";
    }
    SCHEDULE "### `schedule`" {
        cron: Many(1, 100, "{} expressions") = "required", "the times; one that several share gives one task";
        timezone: Text("a name of the IANA database") = "UTC",
            "the time zone of the expressions, like `\"Europe/Berlin\"`";
        missed: Words(&["once", "skip"]) = "once", "what happens with missed times";
        fields: Many(0, 100, "table of {} strings; no `tq-…`, no `scheduled_at`") = "empty",
            "the fields of each task";
        ! every: "is written as a cron expression: cron = \"*/15 * * * *\" is every quarter of an hour";
        ! at: "is written as a cron expression: cron = \"30 3 * * *\" is every day at 03:30";
    }
    HOLD "### `hold`" {
        after: Integer(1, 100) = "5", "failures for a cause outside in a row that begin the hold";
        for: Duration("1s", "1h") = "30s",
            "how long the queue waits before a task is tried; a service's `Retry-After` makes it longer, \
            up to an hour";
    }
    SERIAL "### `serial`" {
        field: Other("1 to 512 bytes") = "required",
            "the field that holds the key; a task without it, or with an empty value, runs beside all \
            others";
        limit: Integer(1, 10_000) = "1",
            "how many tasks of one key may run; with more than one they have no order";
    }
    ON_END "### `on_end`" {
        completed, dead, cancelled: Other("name") = "as `queue` says",
            "told of tasks that completed; that are dead or lost; that were cancelled, or were duplicates \
            in the queue";
        queue: Other("name") = "none", "told of the other outcomes";
        fields: Other("list of names") = "all", "the fields of the ended task that are told";
    }
    LIST "### `list`" {
        key: Other("1 to 512 bytes") = "required",
            "the key of the Redis list; with `\"sidekiq\"` it is `queue:` and a name, perhaps with a \
            namespace before it (`shop:queue:default`)";
        items: Words(&["bytes", "json", "celery", "sidekiq"]) = "bytes",
            "the form of an item: any bytes, one JSON value, a message of [Celery](migrating/celery.md), \
            or a job of [Sidekiq](migrating/sidekiq.md)";
    }
    PLUGIN "## `[plugins.NAME]`" {
        config: Other("table of secrets") = "empty",
            "values that the handler reads through `wasi:config/store`; every value is a string";
        memory: Size("1MiB", "4GiB") = "128MiB",
            "all memories of one instance, with the header fields, bodies and \
            [effects](effects.md#the-rules) that the host holds for it";
        max_output: Size("1B", "64MiB") = "1MiB",
            "the longest result; a longer one fails its attempt (`output-too-large`). Lower [limits of \
            Redis](acl.md#a-host) count";
        max_log_rate: Size("1KiB", "1GiB") = "1MiB",
            "bytes of log lines per second of the plugin in this host, 192 more for each line; eight \
            times as much in a burst. Further lines are dropped";
        allowed_hosts: Other("list of strings or tables") = "empty",
            "where its handlers may send HTTP requests: [`allowed_hosts`](#allowed_hosts)";
        http: Table(&HTTP, "table") = "see [`http`](#http)", "the limits of these requests";
        records: Other("patterns of 1 to 512 bytes") = "empty",
            "keys of the Redis hashes that its handlers may read and write as \
            [records](effects.md#records); `*` stands for any text";
        instance: Table(&INSTANCE, "`\"per-task\"` or table") = "`\"per-task\"`",
            "a fresh [`instance`](#instance) for each task, or one for several";
        source: Other("`\"oci://REGISTRY/NAME:TAG\"`, `@sha256:…`") = "none",
            "the registry that the plugin [comes from](operations.md#plugins-from-a-registry), instead of \
            a file in `plugins_dir`";
    }
    ALLOWED_HOST "### `allowed_hosts`" {
        host: Other("as an entry above") = "required", "where requests may go";
        private_addresses: Other("addresses, or blocks like `\"10.0.0.0/8\"`") = "empty",
            "addresses that are not public to which `host` may resolve";
    }
    HTTP "### `http`" {
        connect_timeout: Duration("1ms", "1d") = "10s", "name lookup, connection and TLS handshake, together";
        first_byte_timeout: Duration("1ms", "1d") = "60s",
            "sending, and waiting for the head of the response";
        between_bytes_timeout: Duration("1ms", "1d") = "30s", "the longest pause within a response";
        timeout: Duration("1ms", "1d") = "the attempt's", "the whole of one request, with its response";
        // The host keeps a few pieces of each response that the handler has not read.
        max_concurrent: Integer(1, 256) = "8",
            "open requests of one attempt, until their responses are read to the end or dropped";
        max_connections: Integer(1, 10_000) = "256",
            "open requests of the plugin in this host, by default no fewer than the `concurrency` of its \
            queues; further ones wait for up to `connect_timeout`";
        // Servers close idle connections after 5 seconds at the earliest, as a rule.
        keep_alive: Duration("0s", "5m") = "4s",
            "how long a connection waits for the plugin's next request to the same scheme, host and port";
        max_requests: Integer(1, 1_000_000) = "1000", "requests of one attempt";
        max_request_body, max_response_body: Size("0B", "4GiB") = "16MiB",
            "the body of one request, or response";
        ca: Other("a PEM file up to 1 MiB") = "none", "certificates to trust in addition to the system's";
        ! allowed_hosts: "belongs beside http, not into it: [plugins.NAME] allowed_hosts = […]";
        ! private_addresses: "belongs to the hosts that may have such addresses: allowed_hosts = \
            [{ host = \"https://ledger.internal\", private_addresses = [\"10.4.0.0/16\"] }]";
    }
    INSTANCE "### `instance`" {
        concurrent: Integer(1, 1_000) = "1",
            "largest number of tasks that one instance runs at the same time";
        warm: Integer(1, 256) = "4",
            "largest number of instances of the plugin that wait for a task, in this host; more may run; \
            required without `concurrent`";
        max_tasks: Integer(1, 1_000_000) = "1000", "number of tasks after which an instance is dropped";
    }
    SECRET "## Secrets" {
        env: Other("string") = "none", "the environment variable with the secret";
        file: Other("path") = "none", "the file with the secret";
    }
}

const OF_BACKOFF: &str = "belongs into backoff: write backoff = { delays = [\"10s\", \"30s\", \"60s\"] }";
const OWN: &str = "makes no sense as a default, every queue has its own: write it in [queues.NAME]";
const NEEDED: &str = "makes no sense as a default: write it in each [queues.NAME] that needs it";

/// The keys of `[defaults]`: those of a queue, without the keys that each queue has to set itself.
pub(super) const DEFAULTS: Keys = Keys {
    heading: "## `[defaults]`",
    known: QUEUE.known,
    elsewhere: &[
        ("delays", OF_BACKOFF),
        ("order", NEEDED),
        ("serial", NEEDED),
        ("stream", OWN),
        ("list", OWN),
        ("schedule", OWN),
        ("dead_letter", OWN),
    ],
};

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    const PAGES: [&str; 2] = ["configuration.md", "configuration-queues.md"];
    const HEAD: &str = "| key | values | default | meaning |";

    /// The table of the page.
    fn table(keys: &Keys) -> String {
        let mut text = format!("{HEAD}\n|---|---|---|---|\n");
        for alike in keys.known.chunk_by(|a, b| row(a) == row(b)) {
            let names: Vec<String> = alike.iter().map(|key| format!("`{}`", key.name)).collect();
            writeln!(text, "| {} | {}", names.join(", "), row(&alike[0])).expect("a string");
        }
        text
    }

    /// All of a row but the key.
    fn row(key: &Key) -> String {
        let code = |text: &str| format!("`\"{text}\"`");
        let (values, is_plain, quotes) = match &key.values {
            Values::Integer(least, most) => {
                (format!("{least} to {most}"), key.default.parse::<u32>().is_ok(), "")
            }
            Values::Number(least, most) => {
                (format!("{least} to {most}"), key.default.parse::<f64>().is_ok(), "")
            }
            Values::Boolean() => ("boolean".to_owned(), true, ""),
            Values::Duration(least, most) | Values::Size(least, most) => {
                let is_plain = key.default.starts_with(|c: char| c.is_ascii_digit());
                (format!("{} to {}", code(least), code(most)), is_plain, "\"")
            }
            Values::Words(words) => {
                let shown: Vec<String> = words.iter().map(|word| code(word)).collect();
                (shown.join(", "), words.contains(&key.default), "\"")
            }
            Values::Text(words) => ((*words).to_owned(), true, "\""),
            Values::Table(..) | Values::Named(..) | Values::Many(..) | Values::Other(_) => {
                (key.values.words().expect("words"), false, "")
            }
        };
        let default = match key.default {
            text if is_plain => format!("`{quotes}{text}{quotes}`"),
            text => text.to_owned(),
        };
        let cells = [values, default, key.meaning.to_owned()]
            .map(|cell| if cell.is_empty() { cell } else { cell + " " });
        format!("{}| {}| {}|", cells[0], cells[1], cells[2])
    }

    /// The text of a section of the page, up to the next heading.
    fn section<'p>(page: &'p str, keys: &Keys) -> Option<&'p str> {
        let from = page.find(&format!("\n{}\n", keys.heading))?;
        let text = &page[from + 1..];
        Some(text.find("\n#").map_or(text, |end| &text[..end + 1]))
    }

    #[test]
    fn the_pages_have_every_key() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let mut pages = PAGES.map(|name| std::fs::read_to_string(docs.join(name)).expect("the page"));
        for keys in ALL.iter().chain([&DEFAULTS]) {
            let place = pages.iter().position(|page| section(page, keys).is_some());
            let place = place.unwrap_or_else(|| panic!("no {}", keys.heading));
            let (name, page) = (PAGES[place], &mut pages[place]);
            let text = section(page, keys).expect("the section");
            // The page tells of some keys in words.
            let Some(at) = text.find(HEAD) else {
                let missing = keys.here().find(|key| !text.contains(&format!("`{key}`")));
                assert_eq!(missing, None, "below {}", keys.heading);
                continue;
            };
            let old = text[at..].find("\n\n").map_or(&text[at..], |end| &text[at..=at + end]);
            let table = table(keys);
            if old == table {
                continue;
            }
            assert!(
                std::env::var_os("WRITE").is_some(),
                "below {}, docs/{name} differs from config/keys.rs: WRITE=1 writes\n{table}",
                keys.heading
            );
            *page = page.replacen(&text.to_owned(), &text.replacen(old, &table, 1), 1);
            std::fs::write(docs.join(name), page).expect("write the page");
        }
    }
}
