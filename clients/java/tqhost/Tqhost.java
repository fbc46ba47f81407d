package tqhost;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * A producer's client for tqhost, on Jedis, Lettuce, or any other client of Redis. JDK 17 or newer.
 *
 * <p>In: a function that sends a command, and the name of a queue's stream. Out: tasks by plain XADD, their
 * statuses, waits that end, cancels through the HTTP API, and webhooks of {@code http-call} that are checked.
 * Not here: handlers, and what only hosts write.
 */
@SuppressWarnings("serial")
public final class Tqhost {
    private static final int MAX_FIELDS = 1000;
    private static final long MAX_TASK_BYTES = 16 << 20;
    private static final int MAX_ID_BYTES = 256;
    private static final Duration MAX_DELAY = Duration.ofDays(365);
    /** Redis does not announce changes of a status, so a wait looks a few times a second. */
    private static final long PERIOD_MS = 250;
    private static final Duration HTTP_TIMEOUT = Duration.ofSeconds(30);
    private static final int MAX_ANSWER = 1 << 20;
    /** A trace context of W3C: version 00, or a later one, which appends to it, in 256 bytes at most. */
    private static final String TRACE_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}";
    private static final Pattern TRACE = Pattern.compile(
            "00-" + TRACE_IDS + "|(?!00|ff)[0-9a-f]{2}-" + TRACE_IDS + "-[!-@\\[-~]{0,200}");

    private Tqhost() {}

    /** Sends a command to Redis. Its errors are unchecked, and pass through this class. */
    @FunctionalInterface
    public interface Redis {
        /**
         * @param command the name of the command, in capitals
         * @param arguments what follows the name; the first one is the key
         * @return the reply: a string as {@code byte[]} or String, a number as Long, a list as List, or null
         */
        Object run(String command, byte[]... arguments);
    }

    /** A field of a task. Its value is any bytes; a text is written in UTF-8. */
    public record Field(String name, byte[] value) {
        public Field(String name, String value) { this(name, bytes(value)); }
    }

    /**
     * What a task may have beside its fields, each null or zero if it has none: {@code new
     * Options().key("order-7").delay(Duration.ofSeconds(10))}.
     *
     * @param id the task's id, at most 256 bytes; without it, the task has that of its entry
     * @param key the idempotency key: while another task has it, this one ends as CANCELLED
     * @param delay how long the task waits before it runs, at most 365 days; a part of a millisecond counts
     *     as a whole one
     * @param traceparent a trace context of W3C
     */
    public record Options(String id, String key, Duration delay, String traceparent) {
        public Options() { this(null, null, Duration.ZERO, null); }
        public Options id(String id) { return new Options(id, key, delay, traceparent); }
        public Options key(String key) { return new Options(id, key, delay, traceparent); }
        public Options delay(Duration delay) { return new Options(id, key, delay, traceparent); }
        public Options traceparent(String traceparent) { return new Options(id, key, delay, traceparent); }
    }

    /**
     * The fields of docs/status.md; null stands for one that is not there. Times are milliseconds since the
     * Unix epoch.
     *
     * @param status PENDING, PROCESSING, COMPLETED, FAILED, CANCELLED, or UNKNOWN: the id is not known, or
     *     not yet, or not any more
     * @param attempt the number of the newest attempt, from 1
     * @param progress 0 to 100
     */
    public record Status(String id, String status, Long attempt, Long enqueuedAt, Long dueAt, Long startedAt,
            Long finishedAt, Long progress, String note, String error, String duplicateOf, byte[] result) {
        private Status(String id, String status) {
            this(id, status, null, null, null, null, null, null, null, null, null, null);
        }

        /** Whether nothing follows by itself. */
        public boolean hasEnded() { return List.of("COMPLETED", "FAILED", "CANCELLED").contains(status); }
    }

    /** The base of all errors of this class. Errors of Redis come as its client throws them. */
    public abstract static class TqhostException extends RuntimeException {
        private TqhostException(String message) { super(message); }
    }

    /** No host would take such a task. Nothing was written. */
    public static final class NotATaskException extends TqhostException {
        private NotATaskException(String message) { super(message); }
    }

    /** As many tasks as {@code maxBacklog} wait or run. Nothing was written. */
    public static final class QueueFullException extends TqhostException {
        private QueueFullException(String message) { super(message); }
    }

    /** The task has not ended within the time. It goes on; {@code status} is the last one that was seen. */
    public static final class NotEndedException extends TqhostException {
        public final Status status;

        private NotEndedException(Status status, Duration timeout) {
            super("not ended after " + timeout.toMillis() + " ms: " + status.id + " is " + status.status);
            this.status = status;
        }
    }

    /** The HTTP API refuses; {@code code} is one of docs/api.md, such as {@code unknown-task}. */
    public static final class ApiRefusedException extends TqhostException {
        public final int httpStatus;
        public final String code;

        private ApiRefusedException(int httpStatus, String code, String detail) {
            super(code + " (" + httpStatus + "): " + detail);
            this.httpStatus = httpStatus;
            this.code = code;
        }
    }

    /** The request is not one of {@code http-call}: answer 401. */
    public static final class BadWebhookException extends TqhostException {
        private BadWebhookException(String message) { super(message); }
    }

    /**
     * A queue, by the name of its stream. It may be used by several threads if its Redis may.
     *
     * @param maxBacklog that of the queue's configuration; null refuses no task
     */
    public record Queue(Redis redis, String stream, Long maxBacklog) {
        /** A queue that refuses no task. */
        public Queue(Redis redis, String stream) { this(redis, stream, null); }

        /** Adds a task without options, and returns the id of its entry. */
        public String enqueue(List<Field> fields) { return enqueue(fields, new Options()); }

        /**
         * Adds a task, and returns its id: the given one, or that of its entry.
         *
         * @throws NotATaskException if no host would take the task
         * @throws QueueFullException if {@code maxBacklog} tasks wait or run
         */
        public String enqueue(List<Field> fields, Options options) {
            List<Object> words = entry(fields, options);
            if (maxBacklog != null
                    && (Long) run("XLEN", stream) + (Long) run("ZCARD", key("delayed")) >= maxBacklog) {
                throw new QueueFullException("the queue of " + stream + " is full: " + maxBacklog
                        + " tasks or more wait or run (max_backlog); try again later, or raise it");
            }
            words.addAll(0, List.of(stream, "*"));
            Object added = run("XADD", words.toArray());
            return options.id != null ? options.id : text(added);
        }

        /** The status of a task now. */
        public Status status(String id) {
            List<?> values = read(id);
            // A task that waits for its first host has no status, but an entry. One that left its entry
            // between these two commands has a status now.
            if (values.get(0) == null && id.matches("[0-9]{1,19}-[0-9]{1,19}")) {
                if (!((List<?>) run("XRANGE", stream, id, id)).isEmpty()) {
                    return new Status(id, "PENDING");
                }
                values = read(id);
            }
            if (values.get(0) == null) {
                return new Status(id, "UNKNOWN");
            }
            String[] texts = values.stream().limit(10).map(Tqhost::text).toArray(String[]::new);
            Long[] numbers = Stream.of(texts).limit(7).skip(1)
                    .map(text -> text == null ? null : Long.valueOf(text)).toArray(Long[]::new);
            return new Status(id, texts[0], numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
                    numbers[5], texts[7], texts[8], texts[9], bytes(values.get(10)));
        }

        /**
         * The status after the task's end, however it ended. It blocks the thread.
         *
         * @throws NotEndedException if the task has not ended after {@code timeout}
         */
        public Status wait(String id, Duration timeout) throws InterruptedException {
            long begin = System.nanoTime();
            while (true) {
                Status status = status(id);
                if (status.hasEnded()) {
                    return status;
                }
                long leftMs = timeout.minusNanos(System.nanoTime() - begin).toMillis();
                if (leftMs <= 0) {
                    throw new NotEndedException(status, timeout);
                }
                Thread.sleep(Math.min(leftMs, PERIOD_MS));
            }
        }

        private List<?> read(String id) {
            return (List<?>) run("HMGET", key("task:" + id), "status", "attempt", "enqueued_at", "due_at",
                    "started_at", "finished_at", "progress", "note", "error", "duplicate_of", "result");
        }

        /** One of the queue's other keys. A stream's own hash tag is theirs, too. */
        private String key(String name) {
            return (stream.contains("{") ? "tq:" + stream : "tq:{" + stream + "}") + ":" + name;
        }

        private Object run(String command, Object... words) {
            return redis.run(command, Stream.of(words).map(Tqhost::bytes).toArray(byte[][]::new));
        }
    }

    /** The names and values of the task's entry, by the rules of {@code tqhost enqueue}. */
    private static List<Object> entry(List<Field> fields, Options options) {
        refuse(fields.isEmpty(), "a task needs at least one field");
        refuse(fields.size() > MAX_FIELDS, "a task has at most %d fields, this one has %d", MAX_FIELDS,
                fields.size());
        long size = fields.stream().mapToLong(field -> (long) bytes(field.name).length + field.value.length)
                .sum();
        refuse(size > MAX_TASK_BYTES, "a task has at most %d bytes (16MiB), this one has %d: "
                + "keep large data in blobs", MAX_TASK_BYTES, size);
        for (Field field : fields) {
            for (String prefix : List.of("tq-", "end.")) {
                refuse(field.name.startsWith(prefix),
                        "field `%s`: names that start with `%s` are reserved for tqhost", field.name, prefix);
            }
        }
        refuse(options.delay.compareTo(MAX_DELAY) > 0, "a delay is 365d at most");
        refuse("".equals(options.key), "an idempotency key has at least one byte, this one is empty");
        int idBytes = options.id == null ? 1 : bytes(options.id).length;
        refuse(idBytes < 1 || idBytes > MAX_ID_BYTES, "a task's id has 1 to %d bytes, this one has %d",
                MAX_ID_BYTES, idBytes);
        refuse(options.traceparent != null && !TRACE.matcher(options.traceparent).matches(),
                "not a W3C trace context: write it like "
                        + "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        List<Object> entry = new ArrayList<>();
        fields.forEach(field -> entry.addAll(List.of(field.name, field.value)));
        // As with `tqhost enqueue`: the task's own trace context stays, and a full task gets none.
        boolean hasRoom = fields.size() < MAX_FIELDS && !entry.contains("traceparent");
        add(entry, "traceparent", hasRoom ? options.traceparent : null);
        add(entry, "tq-id", options.id);
        add(entry, "tq-key", options.key);
        long delayMs = options.delay.plusNanos(999_999).toMillis();
        add(entry, "tq-delay-ms", delayMs > 0 ? Long.toString(delayMs) : null);
        return entry;
    }

    private static void refuse(boolean isWrong, String message, Object... values) {
        if (isWrong) {
            throw new NotATaskException(String.format(message, values));
        }
    }

    private static void add(List<Object> entry, String name, String value) {
        if (value != null) {
            entry.addAll(List.of(name, value));
        }
    }

    /** A string of Redis. What is not UTF-8 in it becomes U+FFFD. */
    private static String text(Object string) {
        return string instanceof byte[] bytes ? new String(bytes, UTF_8) : (String) string;
    }

    private static byte[] bytes(Object string) {
        return string instanceof String text ? text.getBytes(UTF_8) : (byte[]) string;
    }

    private static final HttpClient HTTP =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(HTTP_TIMEOUT).build();

    /**
     * Cancels a task through the HTTP API, since only hosts may end tasks. Returns the status that it had.
     *
     * @param api a host's address, such as {@code http://127.0.0.1:7700}
     * @param queue its name in the configuration
     * @param token one that may change something, or null
     * @throws ApiRefusedException if the API refuses
     * @throws IOException if the API is not reached, or does not begin to answer within 30 seconds
     */
    public static String cancel(String api, String queue, String id, String token)
            throws IOException, InterruptedException {
        String path = "/v1/queues/" + coded(queue) + "/tasks/" + coded(id);
        URI address = URI.create(api.replaceAll("/+$", "") + path);
        HttpRequest.Builder request = HttpRequest.newBuilder(address).timeout(HTTP_TIMEOUT).DELETE();
        if (token != null) {
            request.header("authorization", "Bearer " + token);
        }
        var answer = HTTP.send(request.build(), HttpResponse.BodyHandlers.ofInputStream());
        String body;
        try (InputStream stream = answer.body()) {
            body = new String(stream.readNBytes(MAX_ANSWER), UTF_8);
        }
        String before = member(body, "before");
        if (answer.statusCode() == 200 && before != null) {
            return before;
        }
        String code = member(body, "code");
        String detail = code == null ? "the answer is not one of tqhost" : member(body, "detail");
        throw new ApiRefusedException(answer.statusCode(), code == null ? "unreadable" : code, detail);
    }

    private static String coded(String part) {
        return URLEncoder.encode(part, UTF_8).replace("+", "%20");
    }

    /**
     * The text of a member of a flat object in JSON, which Java's library does not read. Within a text, a
     * quotation mark has a backslash before it, so only a member's name is found.
     */
    private static String member(String object, String name) {
        Matcher found = Pattern.compile("\"" + name + "\"\\s*:\\s*\"([^\"\\\\]*+(?:\\\\.[^\"\\\\]*+)*+)\"")
                .matcher(object);
        return !found.find() ? null : Pattern.compile("\\\\(?:u([0-9a-fA-F]{4})|[bfnrt\"\\\\])")
                .matcher(found.group(1)).replaceAll(code -> Matcher.quoteReplacement(code.group(1) == null
                        ? code.group().translateEscapes()
                        : Character.toString(Integer.parseInt(code.group(1), 16))));
    }

    /** Like the one with {@code now} and {@code tolerance}, by this machine's clock, with five minutes. */
    public static String verifyWebhook(String secret, UnaryOperator<String> header, byte[] body) {
        return verifyWebhook(secret, header, body, Instant.now(), Duration.ofMinutes(5));
    }

    /**
     * Checks a request of {@code http-call} (Standard Webhooks), and returns its {@code webhook-id}.
     *
     * @param header returns the value of a header by its name in small letters, or null: {@code
     *     request::getHeader}
     * @param body the bytes as they came
     * @param tolerance how far the request's time may be away from {@code now}
     * @throws BadWebhookException if the request is not one of {@code http-call}
     * @throws IllegalArgumentException if nothing can be checked with this secret
     */
    public static String verifyWebhook(String secret, UnaryOperator<String> header, byte[] body, Instant now,
            Duration tolerance) {
        byte[] key = key(secret);
        String id = header.apply("webhook-id");
        String stamp = header.apply("webhook-timestamp");
        String signatures = header.apply("webhook-signature");
        List<String> all = Arrays.asList(id, stamp, signatures);
        expect(!all.contains(null) && !all.contains(""),
                "webhook-id, webhook-timestamp or webhook-signature is missing");
        expect(stamp.matches("[0-9]{1,15}"), "webhook-timestamp is not a number");
        Duration away = Duration.between(Instant.ofEpochSecond(Long.parseLong(stamp)), now).abs();
        expect(away.compareTo(tolerance) <= 0, "webhook-timestamp is too old or too new");
        byte[] own;
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            mac.update(bytes(id + "." + stamp + "."));
            own = bytes("v1," + Base64.getEncoder().encodeToString(mac.doFinal(body)));
        } catch (GeneralSecurityException error) {
            // Every Java platform has HmacSHA256.
            throw new IllegalStateException(error);
        }
        // Each signature is compared, whichever is equal.
        boolean isEqual = false;
        for (String signature : signatures.split(" ")) {
            isEqual |= MessageDigest.isEqual(own, bytes(signature));
        }
        expect(isEqual, "no signature matches");
        return id;
    }

    private static void expect(boolean isTrue, String message) {
        if (!isTrue) {
            throw new BadWebhookException(message);
        }
    }

    private static byte[] key(String secret) {
        byte[] key = {};
        try {
            key = Base64.getDecoder().decode(secret.replaceFirst("^whsec_", ""));
        } catch (IllegalArgumentException error) {
            // It is refused below.
        }
        if (key.length < 24 || key.length > 64) {
            throw new IllegalArgumentException("the secret is not whsec_ and 24 to 64 bytes in base64");
        }
        return key;
    }
}
