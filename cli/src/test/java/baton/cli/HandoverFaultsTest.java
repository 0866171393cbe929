package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.kv.FreePorts;
import baton.testkit.Await;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Two prefill instances and a decode instance in processes of their own, requests under way, and things going wrong at random moments:
 * every answer is the right one, none comes late, only the legs that a fault hits may fail, and no block is lost. {@code -Dtests.faults=N} is
 * for N faults, {@code -Dtests.seed=N} for other faults, {@code -Dtests.transfer_agent=nixl} for NIXL's own library.
 */
@Tag("thorough")
class HandoverFaultsTest {
    private static final int FAULTS = Integer.getInteger("tests.faults", Fault.values().length);
    private static final long SEED = Long.getLong("tests.seed", 4);
    private static final int MAX_TOKENS = 8;
    private static final int AT_ONCE = 6;
    /** Far more than lease, handshake and transfer may take together. */
    private static final Duration LATEST = Duration.ofSeconds(60);

    private static final String TRANSFER = "--kv-transfer-config.";
    private static final String EXTRA = TRANSFER + "kv_connector_extra_config.";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final List<Asked> PROMPTS = new ArrayList<>();

    private static final String AGENT = System.getProperty("tests.transfer_agent", "auto");

    private static final List<Prefill> PREFILLS = new ArrayList<>();

    private static Instance decode;

    private static final AtomicInteger NUMBERS = new AtomicInteger();

    private record Prefill(String name, int port, Instance instance) {}

    private record Asked(int[] prompt, int[] answer) {}

    private enum Fault {
        PREFILL_DIES,
        DECODE_DIES,
        PREFILL_IS_STOPPED_FOR_A_WHILE,
        DECODE_IS_STOPPED_FOR_A_WHILE,
        CLIENTS_LEAVE_PREFILL,
        CLIENTS_LEAVE_DECODE,
        BAD_REFERENCES,
        GARBAGE_TO_PREFILL,
        GARBAGE_TO_DECODE
    }

    @BeforeAll
    static void start() throws Exception {
        Instance alone = INSTANCES.serve("alone", "--dtype", "float32", "--no-enable-prefix-caching");
        for (String name : List.of("prefill-0", "prefill-1")) {
            int port = FreePorts.inARow(1);
            PREFILLS.add(new Prefill(name, port, serve(name, "kv_producer", port)));
        }
        decode = serve("decode", "kv_consumer", FreePorts.inARow(1));
        int[] lengths = {1, 16, 17, 100, 160, 250, 251, 400, 511, 700, 900, 1009};
        for (int i = 0; i < lengths.length; i++) {
            int[] prompt = Ledgers.prompt(lengths[i], 50 + i);
            PROMPTS.add(new Asked(prompt, alone.complete(prompt, MAX_TOKENS).tokenIds()));
        }
        alone.kill();
    }

    /** Starts an instance on a port and with an engine id that it has again after a restart. */
    private static Instance serve(String name, String role, int port) throws IOException {
        return INSTANCES.serve(
                name,
                "--dtype",
                "float32",
                "--no-enable-prefix-caching",
                TRANSFER + "kv_connector",
                "NixlConnector",
                TRANSFER + "kv_role",
                role,
                TRANSFER + "engine_id",
                name,
                TRANSFER + "kv_load_failure_policy",
                "recompute",
                EXTRA + "transfer_agent",
                AGENT,
                EXTRA + "side_channel_host",
                "127.0.0.1",
                EXTRA + "side_channel_port",
                Integer.toString(port),
                EXTRA + "kv_lease_duration",
                "4",
                EXTRA + "handshake_timeout",
                "2");
    }

    @Test
    void noFaultMakesAnAnswerWrongOrLateOrLeaksABlock() throws Exception {
        Random random = new Random(SEED);
        Map<Fault, Integer> injected = new EnumMap<>(Fault.class);
        Tally tally = new Tally();
        List<Fault> order = new ArrayList<>();
        for (int number = 0; number < FAULTS; number++) {
            if (order.isEmpty()) {
                order.addAll(List.of(Fault.values()));
                Collections.shuffle(order, random);
            }
            Fault fault = order.removeLast();
            try {
                new Round(fault, new Random(random.nextLong()), tally).run();
            } catch (AssertionError | Exception e) {
                throw new AssertionError(
                        "fault %d, %s, of -Dtests.faults=%d -Dtests.seed=%d".formatted(number, fault, FAULTS, SEED), e);
            }
            injected.merge(fault, 1, Integer::sum);
        }
        System.out.printf(
                "HandoverFaultsTest: %d faults %s; %d answers right, %d legs ended with their instance, %d left by their clients"
                        + " (-Dtests.seed=%d)%n",
                FAULTS, injected, tally.right.get(), tally.ended.get(), tally.left.get(), SEED);
    }

    /** The outcomes of legs. */
    private record Tally(AtomicInteger right, AtomicInteger ended, AtomicInteger left) {
        Tally() {
            this(new AtomicInteger(), new AtomicInteger(), new AtomicInteger());
        }
    }

    /** Requests, one fault among them, and the conditions afterwards. */
    private static final class Round {
        private final Fault fault;
        private final Random random;
        private final Tally tally;
        /** The prefill instance that the fault hits, if it hits one. */
        private final Prefill hit;

        private final Queue<CompletableFuture<?>> prefilling = new ConcurrentLinkedQueue<>();
        private final Queue<CompletableFuture<?>> decoding = new ConcurrentLinkedQueue<>();
        private final Queue<ObjectNode> references = new ConcurrentLinkedQueue<>();
        private final AtomicInteger begun = new AtomicInteger();

        Round(Fault fault, Random random, Tally tally) {
            this.fault = fault;
            this.random = random;
            this.tally = tally;
            this.hit = PREFILLS.get(random.nextInt(PREFILLS.size()));
        }

        void run() throws Exception {
            List<SocketChannel> open = new ArrayList<>();
            try (ExecutorService clients = Executors.newVirtualThreadPerTaskExecutor()) {
                List<Future<?>> asking = new ArrayList<>();
                for (int i = 0; i < AT_ONCE; i++) {
                    Random own = new Random(random.nextLong());
                    asking.add(clients.submit(() -> {
                        for (int turn = 0; turn < 2; turn++) {
                            handOver(PROMPTS.get(own.nextInt(PROMPTS.size())), anyPrefill(own), own.nextBoolean());
                        }
                        return null;
                    }));
                }
                Await.until(LATEST, () -> "no request has begun", () -> begun.get() > 0);
                pause(300);
                switch (fault) {
                    case PREFILL_DIES -> hit.instance.kill();
                    case DECODE_DIES -> decode.kill();
                    case PREFILL_IS_STOPPED_FOR_A_WHILE -> stopForAWhile(hit.instance);
                    case DECODE_IS_STOPPED_FOR_A_WHILE -> stopForAWhile(decode);
                    case CLIENTS_LEAVE_PREFILL -> prefilling.forEach(each -> each.cancel(true));
                    case CLIENTS_LEAVE_DECODE -> {
                        Await.until(
                                LATEST,
                                () -> "nothing is being decoded",
                                () -> decoding.stream().anyMatch(each -> !each.isDone())
                                        || asking.stream().allMatch(Future::isDone));
                        decoding.forEach(each -> each.cancel(true));
                    }
                    case BAD_REFERENCES -> badReferences();
                    case GARBAGE_TO_PREFILL -> garbage(hit.instance, open);
                    case GARBAGE_TO_DECODE -> garbage(decode, open);
                }
                for (Future<?> each : asking) {
                    each.get(2 * LATEST.toSeconds(), TimeUnit.SECONDS);
                }
            }
            List<Instance> instances = Stream.concat(PREFILLS.stream().map(Prefill::instance), Stream.of(decode))
                    .toList();
            for (Instance instance : instances) {
                if (instance.isAlive()) {
                    instance.awaitRest();
                }
            }
            for (Instance instance : instances) {
                if (!instance.isAlive()) {
                    instance.restart();
                }
            }
            for (Prefill prefill : PREFILLS) {
                double before = decode.prompts().transferred();
                Await.until(LATEST, () -> "nothing of " + prefill.name + " is handed over after " + fault, () -> {
                    handOver(PROMPTS.get(5), prefill, random.nextBoolean());
                    return decode.prompts().transferred() > before;
                });
            }
            // A connection that sent garbage and is silent since may stay open.
            for (SocketChannel each : open) {
                each.close();
            }
        }

        private static Prefill anyPrefill(Random random) {
            return PREFILLS.get(random.nextInt(PREFILLS.size()));
        }

        private void pause(int mostMillis) {
            LockSupport.parkNanos(TimeUnit.MICROSECONDS.toNanos(random.nextInt(mostMillis * 1000)));
        }

        /** Both legs, as a router sends them. */
        private void handOver(Asked asked, Prefill prefill, boolean atOnce) throws Exception {
            ObjectNode first = Instances.greedy(asked.prompt, 1);
            first.putObject("kv_transfer_params").put("do_remote_decode", true);
            ObjectNode second = Instances.greedy(asked.prompt, MAX_TOKENS);
            String id = "legs-" + NUMBERS.incrementAndGet();
            Optional<CompletableFuture<HttpResponse<String>>> waiting = Optional.empty();
            if (atOnce) {
                second.putObject("kv_transfer_params")
                        .put("do_remote_prefill", true)
                        .put("remote_engine_id", prefill.name)
                        .put("remote_host", "127.0.0.1")
                        .put("remote_port", prefill.port);
                waiting = Optional.of(begin(decode, decoding, second, id));
            }
            begun.incrementAndGet();
            Optional<Reply> prefilled = reply(
                    begin(prefill.instance, prefilling, first, id),
                    fault == Fault.PREFILL_DIES && prefill.equals(hit),
                    Fault.CLIENTS_LEAVE_PREFILL);
            if (prefilled.isPresent()) {
                assertThat(prefilled.get().tokenIds()).containsExactly(asked.answer[0]);
                ObjectNode params = (ObjectNode) prefilled.get().json().path("kv_transfer_params");
                references.add(params.deepCopy());
                second.set("kv_transfer_params", params);
            }
            CompletableFuture<HttpResponse<String>> decoded =
                    waiting.isPresent() ? waiting.get() : begin(decode, decoding, second, id);
            reply(decoded, fault == Fault.DECODE_DIES, Fault.CLIENTS_LEAVE_DECODE)
                    .ifPresent(reply -> answered(asked, reply));
        }

        private void answered(Asked asked, Reply reply) {
            assertThat(reply.tokenIds()).as("%d tokens", asked.prompt.length).isEqualTo(asked.answer);
            tally.right.incrementAndGet();
        }

        private static CompletableFuture<HttpResponse<String>> begin(
                Instance instance, Queue<CompletableFuture<?>> legs, ObjectNode body, String id)
                throws InterruptedException {
            CompletableFuture<HttpResponse<String>> sent =
                    instance.postAndGoOn("/v1/completions", body, "X-Request-Id", id);
            legs.add(sent);
            return sent;
        }

        /**
         * The reply, if the fault did not keep it from coming.
         *
         * @param dies whether the fault ends the instance
         * @param leaves the fault that ends the request
         */
        private Optional<Reply> reply(CompletableFuture<HttpResponse<String>> sent, boolean dies, Fault leaves)
                throws Exception {
            try {
                Reply reply = Reply.of(sent.get(LATEST.toSeconds(), TimeUnit.SECONDS));
                assertThat(reply.status()).as(reply.body()).isEqualTo(200);
                return Optional.of(reply);
            } catch (CancellationException | ExecutionException e) {
                // Which of the two a cancelled request ends in depends on the moment.
                boolean left = e instanceof CancellationException || e.getCause() instanceof CancellationException;
                boolean ended = e.getCause() instanceof IOException;
                if (!(fault == leaves && left) && !(dies && ended)) {
                    throw e;
                }
                (left ? tally.left : tally.ended).incrementAndGet();
            }
            return Optional.empty();
        }

        private void stopForAWhile(Instance instance) throws IOException, InterruptedException {
            instance.freeze();
            try {
                // A lease may be over by then, or not.
                pause(5000);
            } finally {
                instance.thaw();
            }
        }

        /** Expired and invalid references to remote blocks, for the prompts that they belong to and for other prompts. */
        private void badReferences() throws Exception {
            Await.until(LATEST, () -> "no reference is there", () -> !references.isEmpty());
            for (int i = 0; i < 12; i++) {
                List<ObjectNode> known = List.copyOf(references);
                ObjectNode params = known.get(random.nextInt(known.size())).deepCopy();
                spoil(params);
                Asked asked = PROMPTS.get(random.nextInt(PROMPTS.size()));
                ObjectNode body = Instances.greedy(asked.prompt, MAX_TOKENS);
                body.set("kv_transfer_params", params);
                answered(
                        asked,
                        Reply.of(
                                decode.postAndGoOn("/v1/completions", body).get(LATEST.toSeconds(), TimeUnit.SECONDS)));
            }
        }

        private void spoil(ObjectNode params) {
            ArrayNode blocks = (ArrayNode) params.path("remote_block_ids").path(0);
            ObjectNode proof = (ObjectNode) params.path("baton");
            switch (random.nextInt(14)) {
                case 0 -> {
                    // As it was: used up, or of another prompt.
                }
                case 1 -> params.remove("baton");
                case 2 -> blocks.remove(blocks.size() - 1);
                case 3 -> blocks.set(0, random.nextInt(1000));
                case 4 -> blocks.set(0, random.nextBoolean() ? -1 : Integer.MAX_VALUE);
                case 5 -> blocks.add(blocks.get(0));
                case 6 -> params.put("remote_num_tokens", random.nextInt(3000));
                case 7 -> params.put("remote_port", random.nextBoolean() ? 1 : -7);
                case 8 -> params.put("remote_engine_id", "somebody else");
                case 9 -> params.put("remote_request_id", random.nextBoolean() ? "" : "x".repeat(100_000));
                case 10 -> params.put("tp_size", 1 + random.nextInt(1000));
                case 11 -> proof.put("mac", "00".repeat(32));
                case 12 -> ((ArrayNode) proof.path("generations")).set(0, random.nextLong());
                default -> {
                    params.remove("baton");
                    params.put("remote_block_ids", "all");
                }
            }
        }

        /** Sends garbage to all ports of the instance but its API. */
        private void garbage(Instance instance, List<SocketChannel> open) throws Exception {
            int own = instance.url().getPort();
            List<InetSocketAddress> ports = listening(instance.pid()).stream()
                    .filter(each -> each.getPort() != own)
                    .toList();
            // UCX listens on one more.
            assertThat(ports).as("ports of side channel and transfer agent").hasSizeGreaterThanOrEqualTo(2);
            for (InetSocketAddress port : ports) {
                for (int i = 0; i < 5; i++) {
                    byte[] bytes = new byte[random.nextInt(10_000)];
                    random.nextBytes(bytes);
                    if (random.nextBoolean()) {
                        // As a ZeroMQ peer begins.
                        byte[] greeting = {(byte) 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3};
                        System.arraycopy(greeting, 0, bytes, 0, Math.min(greeting.length, bytes.length));
                    }
                    SocketChannel channel = SocketChannel.open(port);
                    open.add(channel);
                    try {
                        for (ByteBuffer left = ByteBuffer.wrap(bytes); left.hasRemaining(); ) {
                            channel.write(left);
                        }
                    } catch (IOException e) {
                        // It has had enough.
                    }
                    if (random.nextBoolean()) {
                        channel.close();
                    }
                }
            }
        }
    }

    /** TCP addresses that a process listens on, from /proc: addresses of IPv4, else the loopback address. */
    private static Set<InetSocketAddress> listening(long pid) throws IOException {
        Set<String> sockets = new HashSet<>();
        try (Stream<Path> files = Files.list(Path.of("/proc/" + pid + "/fd"))) {
            for (Path file : files.toList()) {
                try {
                    sockets.add(Files.readSymbolicLink(file).toString());
                } catch (IOException e) {
                    // Closed meanwhile.
                }
            }
        }
        Set<InetSocketAddress> ports = new HashSet<>();
        for (String table : List.of("tcp", "tcp6")) {
            for (String line : Files.readAllLines(Path.of("/proc/" + pid + "/net/" + table))) {
                String[] fields = line.trim().split("\\s+");
                if (fields[3].equals("0A") && sockets.contains("socket:[" + fields[9] + "]")) {
                    String[] place = fields[1].split(":");
                    int address =
                            place[0].length() == 8 ? Integer.reverseBytes(Integer.parseUnsignedInt(place[0], 16)) : 0;
                    ports.add(new InetSocketAddress(
                            address == 0
                                    ? InetAddress.getLoopbackAddress()
                                    : InetAddress.getByAddress(ByteBuffer.allocate(Integer.BYTES)
                                            .putInt(address)
                                            .array()),
                            Integer.parseInt(place[1], 16)));
                }
            }
        }
        return ports;
    }
}
