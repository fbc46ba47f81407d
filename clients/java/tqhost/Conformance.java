package tqhost;

import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Carries out the calls of the conformance suite: a line of JSON for each call in, and for each answer out.
 *
 * <pre>REDIS_URL=redis://… java -cp CLASSES tqhost.Conformance</pre>
 *
 * Java's library has neither a client of Redis nor a reader of JSON, so both are here, as far as the suite
 * needs them. Not here: the cases ({@code ../../conformance}), and the judge ({@code
 * tests/world/clients.rs}).
 */
final class Conformance {
    private Conformance() {}

    public static void main(String[] args) throws Exception {
        Connection redis = new Connection(URI.create(System.getenv("REDIS_URL")));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(written(answer((Map<?, ?>) new Json(line).value(), redis)));
        }
    }

    private static Map<String, Object> answer(Map<?, ?> call, Tqhost.Redis redis) throws Exception {
        try {
            return carryOut(call, redis);
        } catch (Tqhost.NotATaskException error) {
            return object("error", "not-a-task", "message", error.getMessage());
        } catch (Tqhost.QueueFullException error) {
            return object("error", "queue-full", "message", error.getMessage());
        } catch (Tqhost.BadWebhookException error) {
            return object("error", "bad-webhook", "message", error.getMessage());
        } catch (Tqhost.NotEndedException error) {
            return object("error", "not-ended", "status", error.status.status());
        } catch (Tqhost.ApiRefusedException error) {
            return object("error", "api-refused", "code", error.code, "http_status", error.httpStatus);
        } catch (IllegalArgumentException error) {
            return object("error", "bad-secret", "message", error.getMessage());
        }
    }

    private static Map<String, Object> carryOut(Map<?, ?> call, Tqhost.Redis redis) throws Exception {
        String name = (String) call.get("call");
        String id = (String) call.get("id");
        if (name.equals("verify")) {
            Map<String, String> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
            for (var header : ((Map<?, ?>) call.get("headers")).entrySet()) {
                headers.put((String) header.getKey(), (String) header.getValue());
            }
            return object("id", Tqhost.verifyWebhook((String) call.get("secret"), headers::get,
                    decoded(call.get("body")), Instant.ofEpochSecond((Long) call.get("now")),
                    Duration.ofSeconds((Long) call.get("tolerance"))));
        }
        if (name.equals("cancel")) {
            String api = (String) call.get("api");
            String token = (String) call.get("token");
            return object("before", Tqhost.cancel(api, (String) call.get("queue"), id, token));
        }
        var queue = new Tqhost.Queue(redis, (String) call.get("stream"), (Long) call.get("max_backlog"));
        if (name.equals("enqueue")) {
            List<Tqhost.Field> fields = new ArrayList<>();
            for (Object pair : (List<?>) call.get("fields")) {
                List<?> parts = (List<?>) pair;
                fields.add(new Tqhost.Field((String) parts.get(0), decoded(parts.get(1))));
            }
            Object delay = call.get("delay_ms");
            return object("id", queue.enqueue(fields, new Tqhost.Options(id, (String) call.get("key"),
                    Duration.ofMillis(delay == null ? 0 : (Long) delay), (String) call.get("traceparent"))));
        }
        if (name.equals("wait")) {
            return shown(queue.wait(id, Duration.ofMillis((Long) call.get("timeout_ms"))));
        }
        return shown(queue.status(id));
    }

    private static Map<String, Object> shown(Tqhost.Status found) {
        String result = found.result() == null ? null : Base64.getEncoder().encodeToString(found.result());
        return object("id", found.id(), "status", found.status(), "attempt", found.attempt(),
                "enqueued_at", found.enqueuedAt(), "due_at", found.dueAt(), "started_at", found.startedAt(),
                "finished_at", found.finishedAt(), "progress", found.progress(), "note", found.note(),
                "error", found.error(), "duplicate_of", found.duplicateOf(), "result", result);
    }

    private static byte[] decoded(Object base64) {
        return Base64.getDecoder().decode((String) base64);
    }

    /** The members of an object, without those that are null. */
    private static Map<String, Object> object(Object... members) {
        Map<String, Object> object = new LinkedHashMap<>();
        for (int n = 0; n < members.length; n += 2) {
            if (members[n + 1] != null) {
                object.put((String) members[n], members[n + 1]);
            }
        }
        return object;
    }

    private static String written(Map<String, Object> object) {
        List<String> members = new ArrayList<>();
        object.forEach((name, value) -> members.add(quoted(name) + ":"
                + (value instanceof Number ? value.toString() : quoted((String) value))));
        return "{" + String.join(",", members) + "}";
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char unit : text.toCharArray()) {
            boolean isPlain = unit >= ' ' && unit != '"' && unit != '\\';
            quoted.append(isPlain ? String.valueOf(unit) : String.format("\\u%04x", (int) unit));
        }
        return quoted.append('"').toString();
    }

    /** A reader of JSON with objects, lists, texts and whole numbers. */
    private static final class Json {
        private final String text;
        private int place = 0;

        Json(String text) {
            this.text = text;
        }

        Object value() {
            switch (next()) {
                case '{':
                    Map<String, Object> object = new LinkedHashMap<>();
                    while (next() != '}') {
                        place--;
                        object.put((String) value(), value());
                    }
                    return object;
                case '[':
                    List<Object> list = new ArrayList<>();
                    while (next() != ']') {
                        place--;
                        list.add(value());
                    }
                    return list;
                case '"':
                    return string();
                default:
                    int begin = place - 1;
                    while (Character.isDigit(text.charAt(place))) {
                        place++;
                    }
                    return Long.valueOf(text.substring(begin, place));
            }
        }

        /** The next character that is neither a blank nor between two values. */
        private char next() {
            while (" ,:".indexOf(text.charAt(place)) >= 0) {
                place++;
            }
            return text.charAt(place++);
        }

        private String string() {
            StringBuilder string = new StringBuilder();
            while (true) {
                char unit = text.charAt(place++);
                if (unit == '"') {
                    return string.toString();
                }
                if (unit == '\\') {
                    unit = text.charAt(place++);
                    int control = "bfnrt".indexOf(unit);
                    if (unit == 'u') {
                        unit = (char) Integer.parseInt(text.substring(place, place += 4), 16);
                    } else if (control >= 0) {
                        unit = "\b\f\n\r\t".charAt(control);
                    }
                }
                string.append(unit);
            }
        }
    }

    /** A connection to Redis, by RESP2. */
    private static final class Connection implements Tqhost.Redis {
        private final DataInputStream input;
        private final OutputStream output;

        Connection(URI url) throws IOException {
            Socket socket = new Socket(url.getHost(), url.getPort());
            socket.setTcpNoDelay(true);
            input = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
            output = socket.getOutputStream();
            String[] user = url.getUserInfo().split(":", 2);
            run("AUTH", utf8(user[0]), utf8(user[1]));
        }

        @Override
        public Object run(String command, byte[]... arguments) {
            try {
                var words = new ByteArrayOutputStream();
                words.write(utf8("*" + (arguments.length + 1) + "\r\n"));
                word(words, utf8(command));
                for (byte[] argument : arguments) {
                    word(words, argument);
                }
                words.writeTo(output);
                return reply();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        private static void word(ByteArrayOutputStream words, byte[] word) throws IOException {
            words.write(utf8("$" + word.length + "\r\n"));
            words.write(word);
            words.write(utf8("\r\n"));
        }

        private Object reply() throws IOException {
            String line = line();
            String rest = line.substring(1);
            switch (line.charAt(0)) {
                case '+':
                    return rest;
                case ':':
                    return Long.valueOf(rest);
                case '$':
                    int length = Integer.parseInt(rest);
                    if (length < 0) {
                        return null;
                    }
                    byte[] bytes = input.readNBytes(length);
                    input.skipNBytes(2);
                    return bytes;
                case '*':
                    List<Object> list = new ArrayList<>();
                    for (int left = Integer.parseInt(rest); left > 0; left--) {
                        list.add(reply());
                    }
                    return list;
                default:
                    throw new IOException("Redis: " + line);
            }
        }

        /** A line without its end, CR and LF. */
        private String line() throws IOException {
            StringBuilder line = new StringBuilder();
            for (int unit = input.readUnsignedByte(); unit != '\r'; unit = input.readUnsignedByte()) {
                line.append((char) unit);
            }
            input.skipNBytes(1);
            return line.toString();
        }

        private static byte[] utf8(String text) {
            return text.getBytes(StandardCharsets.UTF_8);
        }
    }
}
