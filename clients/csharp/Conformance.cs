// Carries out the calls of the conformance suite: a line of JSON for each call in, and for each answer out.
//
//     mcs -out:conformance.exe … Tqhost.cs Conformance.cs && REDIS_URL=redis://… mono conformance.exe
//
// A connection to Redis is here, too, as far as the suite needs it. Not here: the cases (`../conformance`),
// and the judge, which has the whole commands (`tests/world/clients.rs`).

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Net.Sockets;
using System.Runtime.Serialization.Json;
using System.Text;
using System.Threading.Tasks;
using System.Xml;
using System.Xml.Linq;
using Tqhost;

internal static class Conformance
{
    private static readonly UTF8Encoding Utf8 = new UTF8Encoding(false);

    private static void Main()
    {
        var redis = new Connection(new Uri(Environment.GetEnvironmentVariable("REDIS_URL")));
        var input = new StreamReader(Console.OpenStandardInput(), Utf8);
        var output = new StreamWriter(Console.OpenStandardOutput(), Utf8) { AutoFlush = true };
        for (var line = input.ReadLine(); line != null; line = input.ReadLine())
        {
            var bytes = Utf8.GetBytes(line);
            var reader = JsonReaderWriterFactory.CreateJsonReader(bytes, XmlDictionaryReaderQuotas.Max);
            output.WriteLine(Answer(XElement.Load(reader), redis.RunAsync).GetAwaiter().GetResult());
        }
    }

    private static async Task<string> Answer(XElement call, Redis redis)
    {
        try
        {
            return await CarryOut(call, redis);
        }
        catch (NotATaskException error)
        {
            return Written("error", "not-a-task", "message", error.Message);
        }
        catch (QueueFullException error)
        {
            return Written("error", "queue-full", "message", error.Message);
        }
        catch (BadWebhookException error)
        {
            return Written("error", "bad-webhook", "message", error.Message);
        }
        catch (NotEndedException error)
        {
            return Written("error", "not-ended", "status", error.Status.Status);
        }
        catch (ApiRefusedException error)
        {
            return Written("error", "api-refused", "code", error.Code, "http_status", error.HttpStatus);
        }
        catch (ArgumentException error)
        {
            return Written("error", "bad-secret", "message", error.Message);
        }
    }

    private static async Task<string> CarryOut(XElement call, Redis redis)
    {
        Func<string, string> Get = name => (string)call.Element(name);
        switch (Get("call"))
        {
            case "verify":
                var headers = new Dictionary<string, string>(StringComparer.OrdinalIgnoreCase);
                foreach (var header in call.Element("headers").Elements())
                {
                    headers[header.Name.LocalName] = header.Value;
                }
                return Written("id", Client.VerifyWebhook(Get("secret"),
                    name => headers.TryGetValue(name, out var value) ? value : null,
                    Convert.FromBase64String(Get("body")), TimeSpan.FromSeconds(long.Parse(Get("tolerance"))),
                    DateTimeOffset.FromUnixTimeSeconds(long.Parse(Get("now")))));
            case "cancel":
                return Written("before",
                    await Client.CancelAsync(Get("api"), Get("queue"), Get("id"), Get("token")));
        }
        var queue = new Queue(redis, Get("stream"), (long?)call.Element("max_backlog"));
        switch (Get("call"))
        {
            case "enqueue":
                var fields = call.Element("fields").Elements().Select(pair => pair.Elements().ToList())
                    .Select(pair => new Field(pair[0].Value, Convert.FromBase64String(pair[1].Value)));
                var delay = TimeSpan.FromMilliseconds((long?)call.Element("delay_ms") ?? 0);
                return Written("id",
                    await queue.EnqueueAsync(fields, Get("id"), Get("key"), delay, Get("traceparent")));
            case "wait":
                var timeout = TimeSpan.FromMilliseconds(long.Parse(Get("timeout_ms")));
                return Shown(await queue.WaitAsync(Get("id"), timeout));
            default:
                return Shown(await queue.StatusAsync(Get("id")));
        }
    }

    private static string Shown(StatusRecord found)
    {
        return Written("id", found.Id, "status", found.Status, "attempt", found.Attempt,
            "enqueued_at", found.EnqueuedAt, "due_at", found.DueAt, "started_at", found.StartedAt,
            "finished_at", found.FinishedAt, "progress", found.Progress, "note", found.Note,
            "error", found.Error, "duplicate_of", found.DuplicateOf,
            "result", found.Result == null ? null : Convert.ToBase64String(found.Result));
    }

    /// <summary>An object in JSON, of names and values, without those that are null.</summary>
    private static string Written(params object[] members)
    {
        var bytes = new MemoryStream();
        using (var json = JsonReaderWriterFactory.CreateJsonWriter(bytes, Utf8))
        {
            json.WriteStartElement("root");
            json.WriteAttributeString("type", "object");
            for (var n = 0; n < members.Length; n += 2)
            {
                if (members[n + 1] == null) continue;
                json.WriteStartElement((string)members[n]);
                json.WriteAttributeString("type", members[n + 1] is string ? "string" : "number");
                json.WriteString(members[n + 1].ToString());
                json.WriteEndElement();
            }
            json.WriteEndElement();
        }
        return Utf8.GetString(bytes.ToArray());
    }

    /// <summary>A connection to Redis, by RESP2.</summary>
    private sealed class Connection
    {
        private readonly Stream stream;
        private readonly BufferedStream input;

        public Connection(Uri url)
        {
            var client = new TcpClient(url.Host, url.Port) { NoDelay = true };
            stream = client.GetStream();
            input = new BufferedStream(stream);
            var user = url.UserInfo.Split(new[] { ':' }, 2);
            Run("AUTH", user);
        }

        public Task<object> RunAsync(string command, params object[] arguments)
        {
            return Task.FromResult(Run(command, arguments));
        }

        private object Run(string command, object[] arguments)
        {
            var words = new MemoryStream();
            Write(words, $"*{arguments.Length + 1}");
            foreach (var argument in new object[] { command }.Concat(arguments))
            {
                var word = argument as byte[] ?? Utf8.GetBytes((string)argument);
                Write(words, $"${word.Length}");
                words.Write(word, 0, word.Length);
                Write(words, "");
            }
            words.WriteTo(stream);
            return Reply();
        }

        private static void Write(Stream words, string line)
        {
            var bytes = Utf8.GetBytes(line + "\r\n");
            words.Write(bytes, 0, bytes.Length);
        }

        private object Reply()
        {
            var line = Line();
            var rest = line.Substring(1);
            switch (line[0])
            {
                case '+':
                    return rest;
                case ':':
                    return long.Parse(rest);
                case '$':
                    if (rest == "-1") return null;
                    var bytes = new byte[int.Parse(rest)];
                    for (var n = 0; n < bytes.Length;)
                    {
                        var read = input.Read(bytes, n, bytes.Length - n);
                        if (read == 0) throw new EndOfStreamException();
                        n += read;
                    }
                    Line();
                    return bytes;
                case '*':
                    return Enumerable.Range(0, int.Parse(rest)).Select(_ => Reply()).ToArray();
                default:
                    throw new IOException("Redis: " + line);
            }
        }

        /// <summary>A line without its end, CR and LF.</summary>
        private string Line()
        {
            var line = new StringBuilder();
            for (var unit = input.ReadByte(); unit != '\r'; unit = input.ReadByte())
            {
                if (unit < 0) throw new EndOfStreamException();
                line.Append((char)unit);
            }
            input.ReadByte();
            return line.ToString();
        }
    }
}
