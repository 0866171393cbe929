package baton.bench;

import baton.bench.frame.Layout;
import baton.bench.frame.Rates;
import baton.bench.frame.Rounds;
import baton.cluster.JavaCommand;
import baton.cluster.WorkerProcess;
import baton.kv.ConfigException;
import baton.kv.FreePorts;
import baton.kv.Require;
import baton.memory.RunDigests;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.select.WireTransports;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import baton.transfer.mooncake.MooncakeAgent;
import baton.transfer.mooncake.MooncakeAgentSettings;
import baton.transfer.nixl.NixlAgent;
import baton.transfer.nixl.NixlExit;
import baton.transfer.nixl.NixlLibrary;
import java.io.EOFException;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures how fast transfer agents read KV blocks of another process (Mooncake's write them, too, as its connector does), and the machine's limits in the same run: copying within a
 * process with as many threads, a plain TCP connection on the loopback device, and UCX's own measurement where it is installed.
 *
 * <p>Blocks are scattered over both pools. Sizes come in turns, and in each turn every case, so that whatever disturbs the machine
 * disturbs all of them.
 *
 * @param threads that copy
 * @param tokens of each transfer
 * @param each how long each case of each size is measured
 * @param progress receives a line for each step
 */
public record TransferBench(int threads, List<Integer> tokens, Duration each, Consumer<String> progress) {
    public static final List<Integer> TOKENS = List.of(128, 512, 2048, 8192, 32768);

    /** Llama-3.2-1B: 16 layers, 8 KV heads, head dimension 64, bfloat16, keys and values. */
    static final int TOKEN_BYTES = 16 * 8 * 64 * 2 * 2;

    static final int BLOCK_TOKENS = 16;
    private static final int HEADS = 8;
    /** The bytes of one head of one layer of a block. */
    private static final int HEAD_BYTES = BLOCK_TOKENS * 64 * 2 * 2;

    private static final int LAYERS = 16;

    /** Digests as a reader of this shape asks for them: one for each head over all layers. */
    private static final RunDigests DIGESTS = new RunDigests(LAYERS, HEADS, HEAD_BYTES, (_, crc32c) -> {
        if (IntStream.of(crc32c).anyMatch(digest -> digest == 0)) {
            throw new IllegalStateException("the digest of a filled block is not zero");
        }
    });

    static final long BLOCK_BYTES = (long) BLOCK_TOKENS * TOKEN_BYTES;
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final int ROUNDS = 5;
    private static final int RAW_WRITE = 1 << 20;
    private static final Duration DEADLINE = Duration.ofMinutes(1);

    /** Transfer agents by name. Two processes with the same environment have the same. */
    private static Map<String, Opener> openers(int threads, NixlLibrary nixl) {
        EmbeddedAgent.Settings settings = EmbeddedAgent.Settings.at("127.0.0.1").withThreads(threads);
        Map<String, Opener> openers = new LinkedHashMap<>();
        openers.put(SHARED, name -> EmbeddedAgent.open(name, settings));
        openers.put(TCP, name -> EmbeddedAgent.open(name, settings.withTransport(EmbeddedAgent.Transport.TCP)));
        openers.put(MOONCAKE, _ -> MooncakeAgent.open(MooncakeAgentSettings.at("127.0.0.1")));
        switch (nixl) {
            case NixlLibrary.Found found ->
                openers.put(NIXL, name -> NixlAgent.open(found, name, NixlAgent.Settings.of("UCX")));
            case NixlLibrary.Absent _ -> {}
        }
        return openers;
    }

    static final String COPY = "copy";
    static final String RAW_TCP = "plain TCP";
    private static final String UCX_GET = "ucx_perftest's get";
    private static final String SHARED = "shared memory";
    static final String TCP = "TCP";
    private static final String NIXL = "NIXL (UCX)";
    private static final String MOONCAKE = "Mooncake's TCP";
    private static final String MOONCAKE_WRITE = "and written";
    private static final String WIRE_TCP = "wire: TCP";
    private static final String WIRE_GLOO = "wire: Gloo";
    private static final String DIGESTED = "and digested";

    /** Transports of wires, by the name of their row. */
    private static final Map<String, String> WIRES =
            Collections.unmodifiableMap(new TreeMap<>(Map.of(WIRE_TCP, "tcp", WIRE_GLOO, "gloo")));

    /** The limit of each implementation: a copy for shared memory, a plain connection for TCP. */
    private static final Map<String, String> LIMITS = Map.of(
            SHARED,
            COPY,
            NIXL,
            COPY,
            DIGESTED,
            SHARED,
            TCP,
            RAW_TCP,
            MOONCAKE,
            RAW_TCP,
            MOONCAKE_WRITE,
            RAW_TCP,
            WIRE_TCP,
            RAW_TCP,
            WIRE_GLOO,
            RAW_TCP);

    /** How the figures are shown. */
    public static final Layout FIGURES = new Layout()
            .head(
                    "Reading KV blocks of {block_bytes|%d|9.765625e-4} KiB of another process, {threads} threads; GB/s of the best run (median),"
                            + " shares likewise")
            .each("sizes", ofSize())
            .line("")
            .each(
                    "range",
                    new Layout().line("{case}: {least|%,d} tokens at {share|%.0f|100} % of the rate of {most|%,d}"))
            .each("absent", new Layout().line("not measured: {.}"));

    private static Layout ofSize() {
        Layout size = new Layout().line("\n{tokens|%,d} tokens, {copy/bytes|%,d|9.5367431640625e-7} MiB");
        for (String name : List.of(
                COPY, RAW_TCP, UCX_GET, SHARED, DIGESTED, TCP, MOONCAKE, MOONCAKE_WRITE, NIXL, WIRE_TCP, WIRE_GLOO)) {
            String rate =
                    "  %-20s {%2$s/bytes_per_second|%%7.2f|1e-9} ({%2$s/median_bytes_per_second|%%6.2f|1e-9})  {%2$s/best_seconds|%%9.3f|1e3} ms"
                            .formatted(name, name);
            String limit = LIMITS.get(name);
            size.line(limit == null ? rate : rate + "  " + Rates.share(name) + " of " + limit);
        }
        return size;
    }

    private interface Opener {
        TransferAgent open(String name) throws TransferException;
    }

    /** @throws ConfigException if a number is not positive */
    public TransferBench {
        Require.positive("threads", threads);
        Require.positive("seconds", each);
        Require.multiples("tokens", tokens, BLOCK_TOKENS);
    }

    /**
     * Measures.
     *
     * @throws IOException if the other process does not start, or a connection or an agent fails
     */
    public void run(ObjectNode json) throws IOException {
        int blocks = Collections.max(tokens) / BLOCK_TOKENS;
        NixlLibrary nixl = NixlLibrary.find(Optional.empty());
        Optional<UcxPerftest> ucx = OtherProgram.find(UcxPerftest.PROGRAM).map(UcxPerftest::new);
        json.put("threads", threads).put("block_bytes", BLOCK_BYTES);
        ArrayNode sizes = json.putArray("sizes");
        ArrayNode absent = json.putArray("absent");
        if (nixl instanceof NixlLibrary.Absent missing) {
            absent.add(missing.reason());
        }
        if (ucx.isEmpty()) {
            absent.add("no %s is on the PATH (Debian's package ucx-utils has it)".formatted(UcxPerftest.PROGRAM));
        }
        Map<String, Opener> openers = openers(threads, nixl);
        progress.accept("two processes with pools of %d MiB".formatted(blocks * BLOCK_BYTES >> 20));
        try (Arena arena = Arena.ofShared();
                WorkerProcess owner = WorkerProcess.start(
                        "owner",
                        JavaCommand.likeThisProcess(TransferBench.class.getName()),
                        List.of(String.valueOf(threads), String.valueOf(blocks)));
                Here here = new Here(arena, owner, openers, blocks);
                Copying copying = new Copying(arena, here.pool, threads)) {
            for (int count : tokens) {
                progress.accept(count + " tokens");
                measure(count, here, copying, ucx, sizes.addObject().put("tokens", count));
            }
            ArrayNode range = json.putArray("range");
            for (String name : List.of(SHARED, TCP)) {
                range.addObject()
                        .put("case", name)
                        .put("least", tokens.getFirst())
                        .put("most", tokens.getLast())
                        .put("share", best(sizes.path(0), name) / best(sizes.path(sizes.size() - 1), name));
            }
        } catch (TransferException | PipeException e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    private static double best(JsonNode size, String name) {
        return size.path(name).path("bytes_per_second").asDouble();
    }

    private void measure(int count, Here here, Copying copying, Optional<UcxPerftest> ucx, ObjectNode json)
            throws IOException {
        int blocks = count / BLOCK_TOKENS;
        int[] from = scattered(here.blocks, blocks, 1);
        int[] to = scattered(here.blocks, blocks, 2);
        List<Range> ranges = here.ranges(from, to);
        Rounds rounds = new Rounds()
                .add(COPY, () -> Rounds.seconds(() -> copying.copy(from, to)))
                .add(SHARED, () -> here.transfer(SHARED, Operation.READ, ranges, Optional.empty()))
                .add(DIGESTED, () -> here.transfer(SHARED, Operation.READ, ranges, Optional.of(DIGESTS)))
                .add(RAW_TCP, () -> Rounds.seconds(() -> here.raw(blocks * BLOCK_BYTES)));
        for (String name : here.agents.keySet()) {
            if (!name.equals(SHARED)) {
                rounds.add(name, () -> here.transfer(name, Operation.READ, ranges, Optional.empty()));
            }
        }
        rounds.add(MOONCAKE_WRITE, () -> here.transfer(MOONCAKE, Operation.WRITE, ranges, Optional.empty()));
        for (String name : here.wires.keySet()) {
            rounds.add(name, () -> Rounds.seconds(() -> here.receive(name, blocks * BLOCK_BYTES)));
        }
        ucx.ifPresent(program -> rounds.add(UCX_GET, () -> program.get(blocks * BLOCK_BYTES, FreePorts.inARow(1))));
        rounds.warmUp(1);
        rounds.run(ROUNDS, each, () -> {
            Rates.write(json, rounds, blocks * BLOCK_BYTES);
            LIMITS.forEach((name, limit) -> Rates.share(json, name, limit));
        });
    }

    /** Some of the blocks, in no order. */
    private static int[] scattered(int blocks, int count, long seed) {
        List<Integer> all = new ArrayList<>(IntStream.range(0, blocks).boxed().toList());
        Collections.shuffle(all, new Random(seed));
        return all.subList(0, count).stream().mapToInt(Integer::intValue).toArray();
    }

    /** The process that owns the blocks: offers its pool by each agent and wire until its standard input ends. */
    public static void main(String[] args) throws Exception {
        NixlExit.atShutdown();
        int threads = Integer.parseInt(args[0]);
        long bytes = Integer.parseInt(args[1]) * BLOCK_BYTES;
        Arena arena = Arena.global();
        Region pool = Region.allocate(arena, bytes, "bench");
        pool.memory().fill((byte) 1);
        Map<String, Opener> openers = openers(threads, NixlLibrary.find(Optional.empty()));
        ObjectNode offer = JSON.createObjectNode().put("address", pool.memory().address());
        ObjectNode agents = offer.putObject("agents");
        for (Map.Entry<String, Opener> each : openers.entrySet()) {
            TransferAgent agent = each.getValue().open("owner");
            agent.register(pool);
            agents.put(each.getKey(), HexFormat.of().formatHex(agent.metadata()));
        }
        ServerSocketChannel server =
                ServerSocketChannel.open().bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        Thread.ofPlatform().daemon().start(() -> sendRaw(server, pool.memory()));
        ObjectNode wires = offer.put("raw", server.socket().getLocalPort()).putObject("wires");
        for (Map.Entry<String, String> each : WIRES.entrySet()) {
            int port = FreePorts.inARow(1);
            wires.put(each.getKey(), port);
            Thread.ofPlatform().daemon().start(() -> sendOver(each.getValue(), port, pool.memory()));
        }
        WorkerProcess.answer(offer.toString());
        while (System.in.read() >= 0) {
            // Lives until its standard input ends, which is when the measuring process ends or closes it.
        }
        System.exit(0);
    }

    private static void sendRaw(ServerSocketChannel server, MemorySegment pool) {
        try (SocketChannel channel = server.accept()) {
            channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
            ByteBuffer wanted = ByteBuffer.allocate(Long.BYTES);
            while (true) {
                wanted.clear();
                while (wanted.hasRemaining()) {
                    if (channel.read(wanted) < 0) {
                        return;
                    }
                }
                long bytes = wanted.getLong(0);
                for (long at = 0; at < bytes; at += RAW_WRITE) {
                    ByteBuffer piece =
                            pool.asSlice(at, Math.min(RAW_WRITE, bytes - at)).asByteBuffer();
                    while (piece.hasRemaining()) {
                        channel.write(piece);
                    }
                }
            }
        } catch (IOException e) {
            System.err.println("the plain connection ended: " + e);
        }
    }

    /** Sends as many bytes as it is asked for, in pieces as a user of wires does, until the peer disconnects. */
    private static void sendOver(String transport, int port, MemorySegment pool) {
        try (Arena arena = Arena.ofConfined();
                WireTransport wires = WireTransports.named("transport", transport);
                Wire wire = wires.meet("127.0.0.1", port, 0, DEADLINE)) {
            MemorySegment wanted = arena.allocate(ValueLayout.JAVA_LONG);
            while (true) {
                wire.receive(wanted, Duration.ofDays(1));
                wire.send(pool.asSlice(0, wanted.get(ValueLayout.JAVA_LONG, 0)), DEADLINE);
            }
        } catch (PipeException e) {
            // The measuring process has ended, or reports the failure itself.
        }
    }

    /** An agent of this process, and the other process for it. */
    private record Connected(TransferAgent agent, Peer peer) {}

    /** The other process, and this process' agents, pool and connections to it. */
    private static final class Here implements AutoCloseable {
        private final long address;
        private final int blocks;
        private final Region pool;
        private final Map<String, Connected> agents = new LinkedHashMap<>();
        private final SocketChannel raw;
        private final Map<String, Wire> wires = new LinkedHashMap<>();
        private final MemorySegment wanted;

        Here(Arena arena, WorkerProcess owner, Map<String, Opener> openers, int blocks)
                throws IOException, TransferException, PipeException {
            this.wanted = arena.allocate(ValueLayout.JAVA_LONG);
            this.blocks = blocks;
            this.pool = Region.allocate(arena, blocks * BLOCK_BYTES, "bench");
            pool.memory().fill((byte) 2);
            JsonNode offer = JSON.readTree(owner.receive(DEADLINE));
            address = offer.path("address").asLong();
            for (Map.Entry<String, Opener> each : openers.entrySet()) {
                TransferAgent agent = each.getValue().open("reader");
                agent.register(pool);
                byte[] metadata = HexFormat.of()
                        .parseHex(offer.path("agents").path(each.getKey()).asString());
                agents.put(each.getKey(), new Connected(agent, agent.connect(metadata, DEADLINE)));
            }
            raw = SocketChannel.open(new InetSocketAddress(
                    InetAddress.getLoopbackAddress(), offer.path("raw").asInt()));
            for (Map.Entry<String, String> each : WIRES.entrySet()) {
                try (WireTransport transport = WireTransports.named("transport", each.getValue())) {
                    int port = offer.path("wires").path(each.getKey()).asInt();
                    wires.put(each.getKey(), transport.meet("127.0.0.1", port, 1, DEADLINE));
                }
            }
        }

        private List<Range> ranges(int[] from, int[] to) {
            List<Range> ranges = new ArrayList<>();
            for (int i = 0; i < from.length; i++) {
                ranges.add(new Range(
                        pool.memory().address() + to[i] * BLOCK_BYTES, address + from[i] * BLOCK_BYTES, BLOCK_BYTES));
            }
            return ranges;
        }

        /** Reads or writes, and returns the seconds until the last byte is there, as the agent has measured them. */
        private double transfer(String name, Operation operation, List<Range> ranges, Optional<RunDigests> digests)
                throws TransferException {
            Connected with = Objects.requireNonNull(agents.get(name));
            return TransferWait.seconds(
                    name,
                    digests.isPresent()
                            ? with.agent.start(operation, with.peer, ranges, Optional.empty(), DEADLINE, digests.get())
                            : with.agent.start(operation, with.peer, ranges, Optional.empty(), DEADLINE));
        }

        /** Asks for bytes over a wire and waits for the last one. */
        private void receive(String name, long bytes) throws PipeException {
            Wire wire = Objects.requireNonNull(wires.get(name));
            wanted.set(ValueLayout.JAVA_LONG, 0, bytes);
            wire.send(wanted, DEADLINE);
            wire.receive(pool.memory().asSlice(0, bytes), DEADLINE);
        }

        private void raw(long bytes) throws IOException {
            ByteBuffer wanted = ByteBuffer.allocate(Long.BYTES).putLong(bytes).flip();
            while (wanted.hasRemaining()) {
                raw.write(wanted);
            }
            for (long at = 0; at < bytes; ) {
                ByteBuffer piece = pool.memory()
                        .asSlice(at, Math.min(RAW_WRITE, bytes - at))
                        .asByteBuffer();
                int count = raw.read(piece);
                if (count < 0) {
                    throw new EOFException("the plain connection ended");
                }
                at += count;
            }
        }

        @Override
        public void close() throws IOException {
            agents.values().forEach(each -> each.agent.close());
            wires.values().forEach(Wire::close);
            raw.close();
        }
    }

    /** Copies within this process. */
    private static final class Copying implements AutoCloseable {
        private final MemorySegment from;
        private final MemorySegment to;
        private final int threads;
        private final ExecutorService executor;

        Copying(Arena arena, Region to, int threads) {
            this.from = Region.allocate(arena, to.memory().byteSize(), "bench")
                    .memory()
                    .fill((byte) 3);
            this.to = to.memory();
            this.threads = threads;
            this.executor = Executors.newFixedThreadPool(
                    threads, Thread.ofPlatform().daemon().factory());
        }

        private void copy(int[] sources, int[] targets) throws Exception {
            AtomicInteger next = new AtomicInteger();
            Callable<Boolean> work = () -> {
                for (int at = next.getAndIncrement(); at < sources.length; at = next.getAndIncrement()) {
                    MemorySegment.copy(from, sources[at] * BLOCK_BYTES, to, targets[at] * BLOCK_BYTES, BLOCK_BYTES);
                }
                return true;
            };
            for (Future<Boolean> each :
                    executor.invokeAll(Collections.nCopies(threads, work), DEADLINE.toMinutes(), TimeUnit.MINUTES)) {
                var _ = each.resultNow();
            }
        }

        @Override
        public void close() {
            executor.close();
        }
    }
}
