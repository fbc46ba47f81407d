// A producer's client for tqhost, on StackExchange.Redis, or any other client of Redis.
//
// In: a function that sends a command, and the name of a queue's stream. Out: tasks by plain XADD, their
// statuses, waits that end, cancels through the HTTP API, and webhooks of `http-call` that are checked. Not
// here: handlers, and what only hosts write.
//
// The language is C# 7. In a project with `Nullable`, write `#nullable disable` above this line.

using System;
using System.Collections.Generic;
using System.Linq;
using System.Net.Http;
using System.Runtime.Serialization.Json;
using System.Security.Cryptography;
using System.Text;
using System.Text.RegularExpressions;
using System.Threading;
using System.Threading.Tasks;
using System.Xml;
using System.Xml.Linq;

namespace Tqhost
{
    /// <summary>Sends a command to Redis. Its errors pass through this library.</summary>
    /// <param name="command">the name of the command, in capitals</param>
    /// <param name="arguments">what follows the name: strings, and values as byte[]; the first one is the
    /// key</param>
    /// <returns>the reply: a string as byte[] or string, a number as long, a list as object[], or
    /// null</returns>
    public delegate Task<object> Redis(string command, params object[] arguments);

    /// <summary>A queue, by its stream. Threads may share it if they may share its Redis.</summary>
    public sealed class Queue
    {
        private const int MaxFields = 1000;
        private const long MaxTaskBytes = 16 << 20;
        private const int MaxIdBytes = 256;
        private static readonly TimeSpan MaxDelay = TimeSpan.FromDays(365);
        private static readonly string[] Reserved = { "tq-", "end." };
        // Redis does not announce changes of a status, so a wait looks a few times a second.
        private static readonly TimeSpan Period = TimeSpan.FromMilliseconds(250);
        // A trace context of W3C: version 00, or a later one, which appends to it, in 256 bytes at most.
        private const string TraceIds = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}";
        private const string Trace =
            @"\A(00-" + TraceIds + "|(?!00|ff)[0-9a-f]{2}-" + TraceIds + @"-[!-@\[-~]{0,200})\z";

        private readonly Redis redis;
        private readonly string stream;
        private readonly long? maxBacklog;
        // The beginning of the queue's other keys. A stream's own hash tag is theirs, too.
        private readonly string keys;

        /// <param name="redis">what sends its commands</param>
        /// <param name="stream">the name of its stream</param>
        /// <param name="maxBacklog">that of the queue's configuration; without it, no task is refused</param>
        public Queue(Redis redis, string stream, long? maxBacklog = null)
        {
            this.redis = redis;
            this.stream = stream;
            this.maxBacklog = maxBacklog;
            keys = stream.Contains("{") ? $"tq:{stream}" : $"tq:{{{stream}}}";
        }

        /// <summary>Adds a task, and returns its id: the given one, or that of its entry.</summary>
        /// <param name="fields">its fields, in their order</param>
        /// <param name="id">the task's id, at most 256 bytes; without it, that of its entry</param>
        /// <param name="key">the idempotency key: while another task has it, this one ends as
        /// CANCELLED</param>
        /// <param name="delay">how long the task waits before it runs, at most 365 days; a part of a
        /// millisecond counts as a whole one</param>
        /// <param name="traceparent">a trace context of W3C</param>
        /// <exception cref="NotATaskException">No host would take the task.</exception>
        /// <exception cref="QueueFullException">`maxBacklog` tasks wait or run.</exception>
        public async Task<string> EnqueueAsync(IEnumerable<Field> fields, string id = null, string key = null,
            TimeSpan delay = default(TimeSpan), string traceparent = null)
        {
            var entry = Entry(fields.ToList(), id, key, delay, traceparent);
            if (maxBacklog != null)
            {
                var queued = (long)await redis("XLEN", stream).ConfigureAwait(false);
                var delayed = (long)await redis("ZCARD", keys + ":delayed").ConfigureAwait(false);
                if (queued + delayed >= maxBacklog)
                {
                    throw new QueueFullException($"the queue of {stream} is full: {maxBacklog} tasks or more "
                        + "wait or run (max_backlog); try again later, or raise it");
                }
            }
            entry.InsertRange(0, new object[] { stream, "*" });
            var added = await redis("XADD", entry.ToArray()).ConfigureAwait(false);
            return id ?? Text(added);
        }

        /// <summary>The status of a task now.</summary>
        public async Task<StatusRecord> StatusAsync(string id)
        {
            var values = await ReadAsync(id).ConfigureAwait(false);
            // A task that waits for its first host has no status, but an entry. One that left its entry
            // between these two commands has a status now.
            if (values[0] == null && Regex.IsMatch(id, @"\A[0-9]{1,19}-[0-9]{1,19}\z"))
            {
                var entries = (object[])await redis("XRANGE", stream, id, id).ConfigureAwait(false);
                if (entries.Length > 0) return new StatusRecord { Id = id, Status = "PENDING" };
                values = await ReadAsync(id).ConfigureAwait(false);
            }
            if (values[0] == null) return new StatusRecord { Id = id, Status = "UNKNOWN" };
            return new StatusRecord
            {
                Id = id,
                Status = Text(values[0]),
                Attempt = Number(values[1]),
                EnqueuedAt = Number(values[2]),
                DueAt = Number(values[3]),
                StartedAt = Number(values[4]),
                FinishedAt = Number(values[5]),
                Progress = Number(values[6]),
                Note = Text(values[7]),
                Error = Text(values[8]),
                DuplicateOf = Text(values[9]),
                Result = values[10] is string text ? Encoding.UTF8.GetBytes(text) : (byte[])values[10],
            };
        }

        /// <summary>The status after the task's end, however it ended.</summary>
        /// <exception cref="NotEndedException">The task has not ended after the time.</exception>
        /// <exception cref="OperationCanceledException">The wait was stopped. The task goes on.</exception>
        public async Task<StatusRecord> WaitAsync(string id, TimeSpan timeout,
            CancellationToken stop = default(CancellationToken))
        {
            var clock = System.Diagnostics.Stopwatch.StartNew();
            while (true)
            {
                var status = await StatusAsync(id).ConfigureAwait(false);
                if (status.HasEnded) return status;
                var left = timeout - clock.Elapsed;
                if (left <= TimeSpan.Zero) throw new NotEndedException(status, timeout);
                await Task.Delay(left < Period ? left : Period, stop).ConfigureAwait(false);
            }
        }

        private async Task<object[]> ReadAsync(string id) =>
            (object[])await redis("HMGET", keys + ":task:" + id, "status", "attempt", "enqueued_at", "due_at",
                "started_at", "finished_at", "progress", "note", "error", "duplicate_of", "result")
                .ConfigureAwait(false);

        private static long? Number(object reply) => reply == null ? (long?)null : long.Parse(Text(reply));

        /// <summary>A string of Redis. What is not UTF-8 in it becomes U+FFFD.</summary>
        private static string Text(object reply) =>
            reply is byte[] bytes ? Encoding.UTF8.GetString(bytes) : (string)reply;

        /// <summary>The names and values of the task's entry, by the rules of `tqhost enqueue`.</summary>
        private static List<object> Entry(
            List<Field> fields, string id, string key, TimeSpan delay, string trace)
        {
            Refuse(fields.Count == 0, "a task needs at least one field");
            Refuse(fields.Count > MaxFields,
                $"a task has at most {MaxFields} fields, this one has {fields.Count}");
            var size = fields.Sum(field => (long)Encoding.UTF8.GetByteCount(field.Name) + field.Value.Length);
            Refuse(size > MaxTaskBytes,
                $"a task has at most {MaxTaskBytes} bytes (16MiB), this one has {size}: "
                + "keep large data in blobs");
            foreach (var field in fields)
            {
                var name = field.Name;
                var prefix = Reserved.FirstOrDefault(one => name.StartsWith(one, StringComparison.Ordinal));
                Refuse(prefix != null,
                    $"field `{name}`: names that start with `{prefix}` are reserved for tqhost");
            }
            Refuse(delay > MaxDelay, "a delay is 365d at most");
            Refuse(key == "", "an idempotency key has at least one byte, this one is empty");
            var idBytes = id == null ? 1 : Encoding.UTF8.GetByteCount(id);
            Refuse(idBytes < 1 || idBytes > MaxIdBytes,
                $"a task's id has 1 to {MaxIdBytes} bytes, this one has {idBytes}");
            Refuse(trace != null && !Regex.IsMatch(trace, Trace), "not a W3C trace context: write it like "
                + "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
            var entry = fields.SelectMany(field => new object[] { field.Name, field.Value }).ToList();
            // As with `tqhost enqueue`: the task's own trace context stays, and a full task gets none.
            var hasRoom = fields.Count < MaxFields && fields.All(field => field.Name != "traceparent");
            if (trace != null && hasRoom) entry.AddRange(new[] { "traceparent", trace });
            if (id != null) entry.AddRange(new[] { "tq-id", id });
            if (key != null) entry.AddRange(new[] { "tq-key", key });
            var delayMs = (delay.Ticks + TimeSpan.TicksPerMillisecond - 1) / TimeSpan.TicksPerMillisecond;
            if (delayMs > 0) entry.AddRange(new[] { "tq-delay-ms", delayMs.ToString() });
            return entry;
        }

        private static void Refuse(bool isWrong, string message)
        {
            if (isWrong) throw new NotATaskException(message);
        }
    }

    /// <summary>A field of a task. Its value is any bytes; a text is written in UTF-8.</summary>
    public struct Field
    {
        public readonly string Name;
        public readonly byte[] Value;

        public Field(string name, byte[] value) { Name = name; Value = value; }
        public Field(string name, string value) : this(name, Encoding.UTF8.GetBytes(value)) { }
    }

    /// <summary>The fields of docs/status.md, or null. Times are milliseconds of the Unix epoch.</summary>
    public sealed class StatusRecord
    {
        public string Id { get; internal set; }
        /// <summary>
        /// PENDING, PROCESSING, COMPLETED, FAILED, CANCELLED, or UNKNOWN: the id is not known, or not yet, or
        /// not any more.
        /// </summary>
        public string Status { get; internal set; }
        /// <summary>The number of the newest attempt, from 1.</summary>
        public long? Attempt { get; internal set; }
        public long? EnqueuedAt { get; internal set; }
        public long? DueAt { get; internal set; }
        public long? StartedAt { get; internal set; }
        public long? FinishedAt { get; internal set; }
        /// <summary>0 to 100.</summary>
        public long? Progress { get; internal set; }
        public string Note { get; internal set; }
        public string Error { get; internal set; }
        public string DuplicateOf { get; internal set; }
        public byte[] Result { get; internal set; }

        /// <summary>Whether nothing follows by itself.</summary>
        public bool HasEnded => Status == "COMPLETED" || Status == "FAILED" || Status == "CANCELLED";
    }

    /// <summary>What needs no connection to Redis: cancels, and webhooks.</summary>
    public static class Client
    {
        private const string NotOurs = "the answer is not one of tqhost";
        private static readonly HttpClient Http = new HttpClient(
            new HttpClientHandler { AllowAutoRedirect = false })
        {
            Timeout = TimeSpan.FromSeconds(30),
            MaxResponseContentBufferSize = 1 << 20,
        };

        /// <summary>Cancels a task through the HTTP API, since only hosts may end tasks.</summary>
        /// <param name="api">a host's address, such as `http://127.0.0.1:7700`</param>
        /// <param name="queue">its name in the configuration</param>
        /// <param name="id">the task's id</param>
        /// <param name="token">one that may change something</param>
        /// <param name="stop">ends the request</param>
        /// <returns>the status that the task had</returns>
        /// <exception cref="ApiRefusedException">The API refuses.</exception>
        /// <exception cref="HttpRequestException">The API is not reached.</exception>
        /// <exception cref="OperationCanceledException">There is no answer within 30 seconds.</exception>
        public static async Task<string> CancelAsync(string api, string queue, string id, string token = null,
            CancellationToken stop = default(CancellationToken))
        {
            var path = $"/v1/queues/{Uri.EscapeDataString(queue)}/tasks/{Uri.EscapeDataString(id)}";
            using (var request = new HttpRequestMessage(HttpMethod.Delete, api.TrimEnd('/') + path))
            {
                if (token != null) request.Headers.Add("authorization", "Bearer " + token);
                using (var answer = await Http.SendAsync(request, stop).ConfigureAwait(false))
                {
                    var bytes = await answer.Content.ReadAsByteArrayAsync().ConfigureAwait(false);
                    var body = ReadObject(bytes);
                    var before = (string)body?.Element("before");
                    if (answer.IsSuccessStatusCode && before != null) return before;
                    var code = (string)body?.Element("code");
                    var detail = code != null ? (string)body.Element("detail") : NotOurs;
                    throw new ApiRefusedException((int)answer.StatusCode, code ?? "unreadable", detail);
                }
            }
        }

        /// <summary>An object in JSON, or null if the bytes are none.</summary>
        private static XElement ReadObject(byte[] bytes)
        {
            try
            {
                return XElement.Load(
                    JsonReaderWriterFactory.CreateJsonReader(bytes, XmlDictionaryReaderQuotas.Max));
            }
            // The second one is what an empty answer leads to.
            catch (Exception error) when (error is XmlException || error is InvalidOperationException)
            {
                return null;
            }
        }

        /// <summary>Checks a request of `http-call` (Standard Webhooks).</summary>
        /// <param name="secret">`whsec_` and the key in base64</param>
        /// <param name="header">returns a header by its name in small letters, or null:
        /// `name => request.Headers[name]`</param>
        /// <param name="body">the bytes as they came</param>
        /// <param name="tolerance">how far the request's time may be away from `now`; five minutes by
        /// default</param>
        /// <param name="now">this machine's clock by default</param>
        /// <returns>its `webhook-id`</returns>
        /// <exception cref="BadWebhookException">The request is not one of `http-call`.</exception>
        /// <exception cref="ArgumentException">Nothing can be checked with this secret.</exception>
        public static string VerifyWebhook(string secret, Func<string, string> header, byte[] body,
            TimeSpan? tolerance = null, DateTimeOffset? now = null)
        {
            var key = Key(Regex.Replace(secret, @"\Awhsec_", ""));
            string id = header("webhook-id"), stamp = header("webhook-timestamp");
            var signatures = header("webhook-signature");
            Expect(!new[] { id, stamp, signatures }.Any(string.IsNullOrEmpty),
                "webhook-id, webhook-timestamp or webhook-signature is missing");
            Expect(Regex.IsMatch(stamp, @"\A[0-9]{1,15}\z"), "webhook-timestamp is not a number");
            // The number may be beyond the years of DateTimeOffset.
            var away = (now ?? DateTimeOffset.UtcNow).ToUnixTimeMilliseconds() / 1000.0 - long.Parse(stamp);
            Expect(Math.Abs(away) <= (tolerance ?? TimeSpan.FromMinutes(5)).TotalSeconds,
                "webhook-timestamp is too old or too new");
            using (var hmac = new HMACSHA256(key))
            {
                var signed = Encoding.UTF8.GetBytes($"{id}.{stamp}.").Concat(body).ToArray();
                var own = Encoding.UTF8.GetBytes("v1," + Convert.ToBase64String(hmac.ComputeHash(signed)));
                // Each signature is compared, whichever is equal.
                var equal = signatures.Split(' ').Count(signature =>
                    CryptographicOperations.FixedTimeEquals(own, Encoding.UTF8.GetBytes(signature)));
                Expect(equal > 0, "no signature matches");
            }
            return id;
        }

        private static void Expect(bool isTrue, string message)
        {
            if (!isTrue) throw new BadWebhookException(message);
        }

        private static byte[] Key(string coded)
        {
            var key = new byte[0];
            try { key = Convert.FromBase64String(coded); }
            catch (FormatException) { }
            if (key.Length >= 24 && key.Length <= 64) return key;
            throw new ArgumentException("the secret is not whsec_ and 24 to 64 bytes in base64");
        }
    }

    /// <summary>The base of this library's errors. Errors of Redis come as its client throws them.</summary>
    public abstract class TqhostException : Exception
    {
        internal TqhostException(string message) : base(message) { }
    }

    /// <summary>No host would take such a task. Nothing was written.</summary>
    public sealed class NotATaskException : TqhostException
    {
        internal NotATaskException(string message) : base(message) { }
    }

    /// <summary>As many tasks as `maxBacklog` wait or run. Nothing was written.</summary>
    public sealed class QueueFullException : TqhostException
    {
        internal QueueFullException(string message) : base(message) { }
    }

    /// <summary>The task has not ended within the time. It goes on.</summary>
    public sealed class NotEndedException : TqhostException
    {
        /// <summary>The last status that was seen.</summary>
        public readonly StatusRecord Status;

        internal NotEndedException(StatusRecord status, TimeSpan timeout)
            : base($"not ended after {timeout.TotalSeconds} s: {status.Id} is {status.Status}")
        {
            Status = status;
        }
    }

    /// <summary>The HTTP API refuses.</summary>
    public sealed class ApiRefusedException : TqhostException
    {
        public readonly int HttpStatus;
        /// <summary>One of docs/api.md, such as `unknown-task` or `task-ended`.</summary>
        public readonly string Code;

        internal ApiRefusedException(int httpStatus, string code, string detail)
            : base($"{code} ({httpStatus}): {detail}")
        {
            HttpStatus = httpStatus;
            Code = code;
        }
    }

    /// <summary>The request is not one of `http-call`: answer 401.</summary>
    public sealed class BadWebhookException : TqhostException
    {
        internal BadWebhookException(string message) : base(message) { }
    }
}
