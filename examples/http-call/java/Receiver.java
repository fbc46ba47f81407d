// An application that takes tasks of tqhost's plugin http-call. JDK 17 or newer, no libraries.
//
//   javac Receiver.java && WEBHOOK_SECRET=whsec_… PORT=3000 java Receiver
//
// In: POST requests, signed as Standard Webhooks says. Out: the answer, which is the task's outcome, and one
// line on stdout for each task that was worked on. Replace `work` by your own code, `known` by a table of
// your database, and `Json` by the library that you use already.

import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

public final class Receiver {
    /** The clocks of both machines may differ by this. */
    private static final long TOLERANCE_SECONDS = 5 * 60;
    private static final int MAX_BODY = 16 * 1024 * 1024;
    /** How many tasks are remembered here. A table with a unique key on queue and id needs no bound. */
    private static final int MAX_KNOWN = 100_000;

    private record Answer(int status, String type, String body) {}

    /** A task with its fields, or with the one field that is the body of its request. */
    private record Task(
        String id, String queue, long attempt, long fence, Map<String, Object> fields, byte[] body) {}

    /** The highest fence that was seen for a task, and the answer, when there is one. */
    private static final class Known {
        long fence;
        final CompletableFuture<Answer> answer = new CompletableFuture<>();
    }

    /** No other attempt can succeed. */
    private static final class Rejection extends RuntimeException {
        private static final long serialVersionUID = 1;

        Rejection(String message) {
            super(message);
        }
    }

    private final List<byte[]> keys = new ArrayList<>();
    private final Map<String, Known> known = new LinkedHashMap<>();

    public static void main(String[] args) throws IOException {
        String secrets = System.getenv().getOrDefault("WEBHOOK_SECRET", "");
        Receiver receiver = new Receiver();
        for (String secret : secrets.split("\\s+")) {
            if (secret.startsWith("whsec_")) {
                receiver.keys.add(Base64.getDecoder().decode(secret.substring("whsec_".length())));
            }
        }
        if (receiver.keys.isEmpty()) {
            System.err.println("set WEBHOOK_SECRET to the secret of the plugin's configuration: whsec_…");
            System.exit(1);
        }
        int port = Integer.parseInt(System.getenv().getOrDefault("PORT", "3000"));
        InetSocketAddress address = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        HttpServer server = HttpServer.create(address, 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", receiver::handle);
        server.start();
        System.out.println("{\"port\": " + server.getAddress().getPort() + "}");
    }

    /** Your own code. A Rejection ends the task; after any other exception it comes again. */
    private Answer work(Task task) {
        int size = task.body == null ? size(task.fields.values()) : task.body.length;
        if (size == 0) {
            throw new Rejection("the task has no content");
        }
        System.out.println("{\"id\": " + Json.quoted(task.id) + ", \"queue\": " + Json.quoted(task.queue)
            + ", \"attempt\": " + task.attempt + "}");
        return new Answer(200, "application/json", "{\"bytes\": " + size + "}");
    }

    /** The size of all values. A list has the values of one name. */
    private static int size(Collection<?> values) {
        int size = 0;
        for (Object value : values) {
            size += value instanceof List<?> several ? size(several) : bytes(value).length;
        }
        return size;
    }

    /** A value's bytes. A string is text, and an object has base64. */
    private static byte[] bytes(Object value) {
        return value instanceof String text
            ? text.getBytes(StandardCharsets.UTF_8)
            : Base64.getDecoder().decode((String) Json.object(value).get("base64"));
    }

    /** The task of a request. With `body = "data"` the body is that field, and the rest is in headers. */
    private static Task read(Headers headers, byte[] body) {
        Object json = null;
        try {
            json = Json.read(body);
        } catch (RuntimeException error) {
            // A field need not be JSON.
        }
        String queue = headers.getFirst("tqhost-queue");
        long attempt = Long.parseLong(headers.getFirst("tqhost-attempt"));
        long fence = Long.parseLong(headers.getFirst("tqhost-fence"));
        // A field may look like a task, but it does not know its own delivery.
        if (json instanceof Map<?, ?> task
            && task.get("id") instanceof String id
            && queue.equals(task.get("queue"))
            && Long.valueOf(attempt).equals(task.get("attempt"))
            && Long.valueOf(fence).equals(task.get("fence"))
            && task.get("fields") instanceof Map<?, ?> fields) {
            return new Task(id, queue, attempt, fence, Json.object(fields), null);
        }
        return new Task(headers.getFirst("webhook-id"), queue, attempt, fence, null, body);
    }

    private void handle(HttpExchange exchange) throws IOException {
        Answer answer;
        try {
            answer = answer(exchange);
        } catch (RuntimeException | GeneralSecurityException error) {
            error.printStackTrace();
            answer = problem(500, "the request could not be read");
        }
        byte[] body = answer.body.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("content-type", answer.type);
        exchange.sendResponseHeaders(answer.status, body.length == 0 ? -1 : body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    private Answer answer(HttpExchange exchange) throws IOException, GeneralSecurityException {
        if (!exchange.getRequestMethod().equals("POST")) {
            return problem(405, "tasks come by POST");
        }
        // The signature is for the bytes as they came, not for the JSON that they mean.
        byte[] body = exchange.getRequestBody().readNBytes(MAX_BODY + 1);
        if (body.length > MAX_BODY) {
            return problem(413, "a task has at most " + MAX_BODY + " bytes");
        }
        String why = refusal(exchange, body);
        return why != null ? problem(401, why) : once(read(exchange.getRequestHeaders(), body));
    }

    /** Why a request is not the host's, or null if it is. */
    private String refusal(HttpExchange exchange, byte[] body) throws GeneralSecurityException {
        String id = exchange.getRequestHeaders().getFirst("webhook-id");
        String time = exchange.getRequestHeaders().getFirst("webhook-timestamp");
        String signatures = exchange.getRequestHeaders().getFirst("webhook-signature");
        if (id == null || time == null || signatures == null) {
            return "a header of Standard Webhooks is missing";
        }
        if (!time.matches("[0-9]{1,15}")
            || Math.abs(Instant.now().getEpochSecond() - Long.parseLong(time)) > TOLERANCE_SECONDS) {
            return "the time of the request is not now";
        }
        for (byte[] key : keys) {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            mac.update((id + "." + time + ".").getBytes(StandardCharsets.UTF_8));
            String expected = "v1," + Base64.getEncoder().encodeToString(mac.doFinal(body));
            for (String given : signatures.split(" ")) {
                // This comparison takes the same time wherever the difference is.
                if (MessageDigest.isEqual(expected.getBytes(StandardCharsets.US_ASCII),
                    given.getBytes(StandardCharsets.US_ASCII))) {
                    return null;
                }
            }
        }
        return "the signature is wrong";
    }

    /** Works on a task once, however often it comes. */
    private Answer once(Task task) {
        // Two queues may have tasks with the same id.
        String name = task.queue + "/" + task.id;
        Known entry;
        boolean isFirst;
        synchronized (known) {
            entry = known.get(name);
            isFirst = entry == null;
            if (isFirst) {
                entry = new Known();
                known.put(name, entry);
                if (known.size() > MAX_KNOWN) {
                    known.remove(known.keySet().iterator().next());
                }
            } else if (!entry.answer.isDone() && task.fence < entry.fence) {
                // An older delivery may arrive late, when its host has been replaced by another one.
                return problem(409, "a newer delivery of this task was seen");
            }
            entry.fence = Math.max(task.fence, entry.fence);
        }
        if (isFirst) {
            try {
                entry.answer.complete(work(task));
            } catch (RuntimeException error) {
                // Only an answer is remembered. After an error the next attempt works again.
                synchronized (known) {
                    known.remove(name);
                }
                entry.answer.completeExceptionally(error);
            }
        }
        try {
            return entry.answer.join();
        } catch (CompletionException error) {
            if (error.getCause() instanceof Rejection rejection) {
                return problem(422, rejection.getMessage());
            }
            error.printStackTrace();
            return problem(500, "the work failed");
        }
    }

    private static Answer problem(int status, String detail) {
        String body = "{\"status\": " + status + ", \"detail\": " + Json.quoted(detail) + "}";
        return new Answer(status, "application/problem+json", body);
    }

    /** The little JSON that this example needs. */
    private static final class Json {
        private final String text;
        private int at;

        private Json(String text) {
            this.text = text;
        }

        static Object read(byte[] body) {
            return new Json(new String(body, StandardCharsets.UTF_8)).value();
        }

        @SuppressWarnings("unchecked")
        static Map<String, Object> object(Object value) {
            return (Map<String, Object>) value;
        }

        static String quoted(String text) {
            StringBuilder quoted = new StringBuilder("\"");
            for (char c : text.toCharArray()) {
                if (c == '"' || c == '\\') {
                    quoted.append('\\').append(c);
                } else if (c < ' ') {
                    quoted.append(String.format("\\u%04x", (int) c));
                } else {
                    quoted.append(c);
                }
            }
            return quoted.append('"').toString();
        }

        private char peek() {
            while (Character.isWhitespace(text.charAt(at))) {
                at++;
            }
            return text.charAt(at);
        }

        private boolean take(char c) {
            boolean isThere = peek() == c;
            if (isThere) {
                at++;
            }
            return isThere;
        }

        private void expect(char c) {
            if (!take(c)) {
                throw new IllegalArgumentException("no JSON: " + c + " is missing at " + at);
            }
        }

        private Object value() {
            switch (peek()) {
                case '{': {
                    Map<String, Object> object = new HashMap<>();
                    at++;
                    while (!take('}')) {
                        String name = string();
                        expect(':');
                        object.put(name, value());
                        take(',');
                    }
                    return object;
                }
                case '[': {
                    List<Object> list = new ArrayList<>();
                    at++;
                    while (!take(']')) {
                        list.add(value());
                        take(',');
                    }
                    return list;
                }
                case '"':
                    return string();
                default: {
                    int begin = at;
                    while (at < text.length() && ",]} \n\r\t".indexOf(text.charAt(at)) < 0) {
                        at++;
                    }
                    return Long.valueOf(text.substring(begin, at));
                }
            }
        }

        private String string() {
            expect('"');
            StringBuilder string = new StringBuilder();
            while (text.charAt(at) != '"') {
                char c = text.charAt(at++);
                if (c != '\\') {
                    string.append(c);
                    continue;
                }
                char escaped = text.charAt(at++);
                switch (escaped) {
                    case 'n' -> string.append('\n');
                    case 'r' -> string.append('\r');
                    case 't' -> string.append('\t');
                    case 'b' -> string.append('\b');
                    case 'f' -> string.append('\f');
                    case 'u' -> {
                        string.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                        at += 4;
                    }
                    default -> string.append(escaped);
                }
            }
            at++;
            return string.toString();
        }
    }
}
