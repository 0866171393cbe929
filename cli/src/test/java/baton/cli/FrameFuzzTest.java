package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.ProxiedFleet.Way;
import baton.testkit.Await;
import baton.testkit.DamagingProxy.Conversation;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Mutated frames for every port on which the processes of a fleet listen. Frames are those of hand-overs just made, and of clients of HTTP,
 * gRPC and ZeroMQ. Processes live on, log no unexpected error, keep no thread, file or block, take bounded memory, and the next hand-over
 * is right. {@code -Dtests.frames=N} sends N frames in each fleet, {@code -Dtests.seed=N} other ones.
 */
@Tag("thorough")
class FrameFuzzTest {
    private static final long FRAMES = Long.getLong("tests.frames", 5_000);
    private static final long SEED = Long.getLong("tests.seed", 11);
    private static final int MOST_PER_ROUND = 20_000;
    private static final int HAND_OVERS = 4;
    private static final Duration REST = Duration.ofSeconds(40);
    /** Carriers of virtual threads and threads of pools, which may be started later. */
    private static final int MORE_THREADS = 12;

    private static final int MORE_FILES = 12;
    /** The heap may grow to its limit, and does not shrink. */
    private static final long MORE_BYTES = 600L << 20;

    private static final Pattern UNEXPECTED = Pattern.compile(
            "Exception in thread|OutOfMemoryError|StackOverflowError|could not be answered|NullPointerException"
                    + "|IndexOutOfBounds|ClassCastException|NegativeArraySize|BufferUnderflow|IllegalStateException|AssertionError");

    /** Vert.x 5.1.6, when a connection of HTTP/2 is reset that has a stream of which it does not know. */
    private static final String OF_VERTX = "Http2Stream.onException";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static Instance alone;

    @BeforeAll
    static void start() throws Exception {
        alone = INSTANCES.serve("alone", "--dtype", "float32", "--no-enable-prefix-caching");
        System.out.println("FrameFuzzTest: -Dtests.seed=" + SEED);
    }

    @ParameterizedTest
    @EnumSource(names = {"NIXL", "NIXL_PUSH", "MOONCAKE", "LMCACHE_PD", "P2P_PUT_ASYNC", "PYNCCL", "LMCACHE_KV_SERVER"})
    void aFleetLivesOn(Way way) throws Exception {
        Random random = new Random(SEED);
        try (ProxiedFleet fleet = new ProxiedFleet(way, INSTANCES)) {
            for (int i = 0; i < HAND_OVERS; i++) {
                handsOver(fleet, random);
            }
            fuzz(way.name(), fleet.servers, fleet.conversations(), () -> handsOver(fleet, random));
        }
    }

    private static void handsOver(ProxiedFleet fleet, Random random) throws Exception {
        int[] prompt = ProxiedFleet.prompt(random);
        assertThat(fleet.handOver(prompt)).isEqualTo(ProxiedFleet.answer(alone, prompt));
    }

    /** Ports of HTTP, gRPC, KV events with their replay, registration with a router, and of SGLang's messages and registry. */
    @Test
    void instancesAndTheirRouterLiveOn() throws Exception {
        String events =
                "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:0\", \"replay_endpoint\": \"tcp://*:0\"}";
        Instance first = INSTANCES.serve(
                "first",
                "--dtype",
                "float32",
                "--grpc-port",
                "0",
                "--kv-events-config",
                events,
                "--kv-transfer-config",
                """
                {"kv_connector": "SglangConnector", "kv_role": "kv_producer", "kv_ip": "127.0.0.1", "kv_connector_extra_config":
                 {"bootstrap_port": 0, "bootstrap_timeout": 3, "transfer_timeout": 2, "handshake_timeout": 1}}""");
        Instance second =
                INSTANCES.serve("second", "--dtype", "float32", "--grpc-port", "0", "--kv-events-config", events);
        Instance router = INSTANCES.route(
                "router", List.of(first), List.of(second), "--flow", "content-keyed", "--register-port", "0");
        Random random = new Random(SEED);
        fuzz("ROUTER", List.of(first, second, router), List.of(), () -> {
            int[] prompt = ProxiedFleet.prompt(random);
            assertThat(ProxiedFleet.answer(router, prompt)).isEqualTo(ProxiedFleet.answer(alone, prompt));
        });
        for (Instance each : List.of(first, second, router)) {
            each.kill();
        }
    }

    private interface Check {
        void run() throws Exception;
    }

    private static boolean isUnexpected(String line) {
        return UNEXPECTED.matcher(line).find() && !line.contains(OF_VERTX);
    }

    private static void fuzz(String name, List<Instance> servers, List<Conversation> recorded, Check works)
            throws Exception {
        List<Conversation> corpus = new ArrayList<>(recorded);
        Set<Integer> covered = new HashSet<>();
        recorded.forEach(each -> covered.add(each.port()));
        Map<Instance, Held> before = new HashMap<>();
        for (Instance server : servers) {
            works.run();
            before.put(server, Held.of(server));
            for (int port : listening(server.pid())) {
                if (!covered.contains(port)) {
                    clients().forEach(pieces -> corpus.add(new Conversation(port, pieces)));
                }
            }
        }
        FrameFuzzer fuzzer = new FrameFuzzer(corpus, SEED);
        while (fuzzer.sent() < FRAMES) {
            fuzzer.run(Math.min(MOST_PER_ROUND, FRAMES - fuzzer.sent()));
            works.run();
        }
        for (Instance server : servers) {
            assertThat(server.isAlive()).as("%s is alive", server).isTrue();
            assertThat(server.log().lines().filter(FrameFuzzTest::isUnexpected))
                    .as("log of %s", server)
                    .isEmpty();
            Held held = Objects.requireNonNull(before.get(server));
            Await.until(
                    REST,
                    () -> server + " had " + held + ", has " + Held.of(server),
                    () -> Held.of(server).isAtMost(held));
        }
        works.run();
        System.out.printf(
                "FrameFuzzTest: %s: %d frames, %d connections refused, %s%n",
                name,
                fuzzer.sent(),
                fuzzer.refused(),
                servers.stream()
                        .map(each -> each + " " + before.get(each) + " -> " + Held.of(each))
                        .toList());
    }

    /** Requests of clients in the protocols of all ports that connectors do not open. */
    private static List<List<byte[]>> clients() throws IOException {
        String completion = "{\"prompt\": [5, 300, 7], \"max_tokens\": 2, \"temperature\": 0}";
        String chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 2, \"stream\": true}";
        return List.of(
                List.of(post("/v1/completions", completion)),
                List.of(post("/v1/chat/completions", chat), post("/v1/completions", completion)),
                List.of(post("/tokenize", "{\"prompt\": \"Item 7\"}"), get("/v1/models"), get("/metrics")),
                List.of(post("/v1/instances/register", "{\"type\": \"D\", \"http_address\": \"127.0.0.1:9\"}")),
                List.of(get("/health"), get("/v1/instances"), get("/v1/requests/x/explain")),
                grpc("/vllm.Inference/GenerateStream", new byte[] {10, 1, 'x', 34, 4, 10, 2, 5, 7}),
                grpc("/grpc.health.v1.Health/Check", new byte[0]),
                List.of(get("/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0")),
                zeromq("PUSH", sglang()),
                zeromq("SUB", new byte[] {0, 1, 1}),
                zeromq("DEALER", new byte[] {1, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0}));
    }

    /** A decode rank of the tiny model registers, wants three pages of a room, and aborts it; status messages go nowhere. */
    private static byte[] sglang() {
        byte[] buffers = new byte[2 * 6 * Long.BYTES];
        byte[] none = {};
        byte[] host = ascii("127.0.0.1");
        byte[] session = ascii("127.0.0.1:9");
        byte[] one = ascii("1");
        byte[] zero = ascii("0");
        ByteArrayOutputStream messages = new ByteArrayOutputStream();
        messages.writeBytes(message(
                ascii("None"),
                host,
                ascii("9"),
                session,
                buffers,
                none,
                none,
                zero,
                one,
                ascii("8192"),
                none,
                none,
                none,
                none,
                none,
                none,
                one,
                zero));
        messages.writeBytes(message(ascii("77"), host, ascii("9"), session, new byte[12], one, none, one, zero, none));
        messages.writeBytes(message(ascii("ABORT"), ascii("77"), host, ascii("9")));
        return messages.toByteArray();
    }

    /** A message of ZMTP with short frames. */
    private static byte[] message(byte[]... frames) {
        ByteArrayOutputStream message = new ByteArrayOutputStream();
        for (int i = 0; i < frames.length; i++) {
            message.write(i + 1 < frames.length ? 1 : 0);
            message.write(frames[i].length);
            message.writeBytes(frames[i]);
        }
        return message.toByteArray();
    }

    private static byte[] post(String path, String body) {
        return ascii(
                "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                        + body.length() + "\r\n\r\n" + body);
    }

    private static byte[] get(String path) {
        return ascii("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    /** A call in HTTP/2, with headers as literals without compression (RFC 7541, 6.2.2). */
    private static List<byte[]> grpc(String method, byte[] message) throws IOException {
        ByteArrayOutputStream headers = new ByteArrayOutputStream();
        List<String> fields = List.of(
                ":method",
                "POST",
                ":scheme",
                "http",
                ":path",
                method,
                ":authority",
                "localhost",
                "te",
                "trailers",
                "content-type",
                "application/grpc");
        for (int i = 0; i < fields.size(); i += 2) {
            headers.write(0);
            headers.write(fields.get(i).length());
            headers.write(ascii(fields.get(i)));
            headers.write(fields.get(i + 1).length());
            headers.write(ascii(fields.get(i + 1)));
        }
        byte[] data = ByteBuffer.allocate(5 + message.length)
                .put((byte) 0)
                .putInt(message.length)
                .put(message)
                .array();
        return List.of(
                ascii("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
                http2(4, 0, 0, new byte[0]),
                http2(1, 4, 1, headers.toByteArray()),
                http2(0, 1, 1, data),
                http2(6, 0, 0, new byte[8]),
                http2(8, 0, 1, new byte[] {0, 1, 0, 0}));
    }

    private static byte[] http2(int type, int flags, int stream, byte[] payload) {
        return ByteBuffer.allocate(9 + payload.length)
                .putInt(payload.length << Byte.SIZE | type)
                .put((byte) flags)
                .putInt(stream)
                .put(payload)
                .array();
    }

    /** ZMTP 3.0: greeting, READY and frames. */
    private static List<byte[]> zeromq(String socketType, byte[] frames) {
        byte[] greeting = new byte[64];
        greeting[0] = (byte) 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        System.arraycopy(ascii("NULL"), 0, greeting, 12, 4);
        byte[] ready = ByteBuffer.allocate(2 + 6 + 12 + 4 + socketType.length())
                .put((byte) 4)
                .put((byte) (6 + 12 + 4 + socketType.length()))
                .put((byte) 5)
                .put(ascii("READY"))
                .put((byte) 11)
                .put(ascii("Socket-Type"))
                .putInt(socketType.length())
                .put(ascii(socketType))
                .array();
        return List.of(greeting, ready, frames);
    }

    /** The resources of a process. */
    private record Held(int threads, int files, long bytes) {
        static Held of(Instance server) {
            try (Stream<Path> files = Files.list(Path.of("/proc", Long.toString(server.pid()), "fd"))) {
                String status = Files.readString(Path.of("/proc", Long.toString(server.pid()), "status"));
                return new Held(
                        (int) number(status, "Threads"), Math.toIntExact(files.count()), number(status, "VmRSS") << 10);
            } catch (IOException e) {
                throw new AssertionError(e);
            }
        }

        private static long number(String status, String name) {
            return status.lines()
                    .filter(line -> line.startsWith(name + ":"))
                    .mapToLong(line -> Long.parseLong(line.replaceAll("[^0-9]", "")))
                    .sum();
        }

        boolean isAtMost(Held before) {
            return threads <= before.threads + MORE_THREADS
                    && files <= before.files + MORE_FILES
                    && bytes <= before.bytes + MORE_BYTES;
        }

        @Override
        public String toString() {
            return "%d threads, %d files, %d MiB".formatted(threads, files, bytes >> 20);
        }
    }

    /** TCP ports on which a process listens. */
    static List<Integer> listening(long pid) throws IOException {
        Set<String> sockets = new HashSet<>();
        try (Stream<Path> files = Files.list(Path.of("/proc", Long.toString(pid), "fd"))) {
            for (Path file : (Iterable<Path>) files::iterator) {
                if (Files.isSymbolicLink(file)) {
                    sockets.add(Files.readSymbolicLink(file).toString());
                }
            }
        }
        List<Integer> ports = new ArrayList<>();
        for (String table : List.of("/proc/net/tcp", "/proc/net/tcp6")) {
            for (String line : Files.readAllLines(Path.of(table))) {
                String[] fields = line.trim().split("\\s+");
                if (fields[3].equals("0A") && sockets.contains("socket:[" + fields[9] + "]")) {
                    ports.add(Integer.parseInt(fields[1].substring(fields[1].indexOf(':') + 1), 16));
                }
            }
        }
        return ports;
    }
}
