package baton.bench;

import baton.bench.TransferReport.Rate;
import baton.bench.TransferReport.Size;
import baton.cluster.JavaCommand;
import baton.cluster.WorkerProcess;
import baton.kv.ConfigException;
import baton.kv.FreePorts;
import baton.memory.RunDigests;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.select.WireTransports;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import baton.transfer.mooncake.MooncakeAgent;
import baton.transfer.mooncake.MooncakeSettings;
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
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;

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
    /** Of one head of one layer of a block. */
    private static final int HEAD_BYTES = BLOCK_TOKENS * 64 * 2 * 2;

    private static final int LAYERS = 16;

    /** Digests as a reader of this shape asks for them: one for each head over all layers. */
    private static final RunDigests DIGESTS = new RunDigests(LAYERS, HEADS, HEAD_BYTES, (_, crc32c) -> {
        if (IntStream.of(crc32c).anyMatch(digest -> digest == 0)) {
            throw new IllegalStateException("the digest of a filled block is not zero");
        }
    });

    static final long BLOCK_BYTES = (long) BLOCK_TOKENS * TOKEN_BYTES;
    private static final int ROUNDS = 5;
    private static final int RAW_WRITE = 1 << 20;
    private static final Duration DEADLINE = Duration.ofMinutes(1);

    /** Transfer agents by name. Two processes with the same environment have the same. */
    private static Map<String, Opener> openers(int threads, NixlLibrary nixl) {
        EmbeddedAgent.Settings settings = EmbeddedAgent.Settings.at("127.0.0.1").withThreads(threads);
        Map<String, Opener> openers = new LinkedHashMap<>();
        openers.put(TransferReport.SHARED, name -> EmbeddedAgent.open(name, settings));
        openers.put(
                TransferReport.TCP,
                name -> EmbeddedAgent.open(name, settings.withTransport(EmbeddedAgent.Transport.TCP)));
        openers.put(TransferReport.MOONCAKE, _ -> MooncakeAgent.open(MooncakeSettings.at("127.0.0.1")));
        switch (nixl) {
            case NixlLibrary.Found found ->
                openers.put(TransferReport.NIXL, name -> NixlAgent.open(found, name, NixlAgent.Settings.of("UCX")));
            case NixlLibrary.Absent _ -> {}
        }
        return openers;
    }

    /** Transports of wires, by the name of their row. */
    private static final Map<String, String> WIRES = Collections.unmodifiableMap(
            new TreeMap<>(Map.of(TransferReport.WIRE_TCP, "tcp", TransferReport.WIRE_GLOO, "gloo")));

    private interface Opener {
        TransferAgent open(String name) throws TransferException;
    }

    /** @throws ConfigException if a number is not positive */
    public TransferBench {
        if (threads <= 0) {
            throw new ConfigException("threads", "is " + threads + ", must be positive");
        }
        if (!each.isPositive()) {
            throw new ConfigException("seconds", "is " + each.toMillis() / 1e3 + ", must be positive");
        }
        tokens = TokenCounts.require(tokens, BLOCK_TOKENS);
    }

    /**
     * Measures.
     *
     * @throws IOException if the other process does not start, or a connection or an agent fails
     */
    public TransferReport run() throws IOException {
        int blocks = Collections.max(tokens) / BLOCK_TOKENS;
        NixlLibrary nixl = NixlLibrary.find(Optional.empty());
        Optional<UcxPerftest> ucx =
                UcxPerftest.find(Optional.ofNullable(System.getenv("PATH")).orElse(""));
        List<String> absent = new ArrayList<>();
        if (nixl instanceof NixlLibrary.Absent missing) {
            absent.add(missing.reason());
        }
        if (ucx.isEmpty()) {
            absent.add("no %s is on the PATH (Debian's package ucx-utils has it)".formatted(UcxPerftest.PROGRAM));
        }
        Map<String, Opener> openers = openers(threads, nixl);
        progress.accept("two processes with pools of %d MiB".formatted(blocks * BLOCK_BYTES >> 20));
        try (Arena arena = Arena.ofShared();
                Owner owner = new Owner(openers.keySet(), threads, blocks);
                Here here = new Here(arena, owner, openers, blocks);
                Copying copying = new Copying(arena, here.pool, threads)) {
            List<Size> sizes = new ArrayList<>();
            for (int count : tokens) {
                progress.accept(count + " tokens");
                sizes.add(measure(count, here, copying, ucx));
            }
            List<String> implementations = new ArrayList<>(here.peers.keySet());
            implementations.addAll(here.wires.keySet());
            return new TransferReport(threads, implementations, sizes, absent);
        } catch (TransferException | PipeException e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    private Size measure(int count, Here here, Copying copying, Optional<UcxPerftest> ucx)
            throws IOException, TransferException, PipeException {
        int blocks = count / BLOCK_TOKENS;
        Map<String, Case> cases = new LinkedHashMap<>();
        int[] from = scattered(here.blocks, blocks, 1);
        int[] to = scattered(here.blocks, blocks, 2);
        List<Range> ranges = here.ranges(from, to);
        cases.put(TransferReport.COPY, () -> wall(() -> copying.copy(from, to)));
        cases.put(TransferReport.SHARED, () -> here.read(TransferReport.SHARED, ranges, Optional.empty()));
        cases.put(TransferReport.DIGESTED, () -> here.read(TransferReport.SHARED, ranges, Optional.of(DIGESTS)));
        cases.put(TransferReport.RAW_TCP, () -> wall(() -> here.raw(blocks * BLOCK_BYTES)));
        for (String name : here.peers.keySet()) {
            cases.putIfAbsent(name, () -> here.read(name, ranges, Optional.empty()));
        }
        cases.put(TransferReport.MOONCAKE_WRITE, () -> here.write(TransferReport.MOONCAKE, ranges));
        for (String name : here.wires.keySet()) {
            cases.put(name, () -> here.receive(name, blocks * BLOCK_BYTES));
        }
        ucx.ifPresent(program ->
                cases.put(TransferReport.UCX_GET, () -> program.get(blocks * BLOCK_BYTES, FreePorts.inARow(1))));

        Map<String, List<Double>> seconds = new LinkedHashMap<>();
        for (Map.Entry<String, Case> each : cases.entrySet()) {
            seconds.put(each.getKey(), new ArrayList<>());
            each.getValue().run();
        }
        long share = each.dividedBy(ROUNDS).toNanos();
        for (int round = 0; round < ROUNDS; round++) {
            for (Map.Entry<String, Case> each : cases.entrySet()) {
                long end = System.nanoTime() + share;
                do {
                    double took = each.getValue().run();
                    seconds.computeIfAbsent(each.getKey(), _ -> new ArrayList<>())
                            .add(took);
                } while (System.nanoTime() < end);
            }
        }
        Map<String, Rate> rates = new LinkedHashMap<>();
        seconds.forEach((name, times) -> rates.put(name, new Rate(blocks * BLOCK_BYTES, Timing.of(times))));
        return new Size(count, rates);
    }

    private interface Case {
        /** @return seconds that the case took */
        double run() throws IOException, TransferException, PipeException;
    }

    private interface Action {
        void run() throws IOException;
    }

    private static double wall(Action action) throws IOException {
        long begun = System.nanoTime();
        action.run();
        return (System.nanoTime() - begun) / 1e9;
    }

    /** Some of the blocks, in no order. */
    private static int[] scattered(int blocks, int count, long seed) {
        List<Integer> all = new ArrayList<>(IntStream.range(0, blocks).boxed().toList());
        Collections.shuffle(all, new Random(seed));
        return all.subList(0, count).stream().mapToInt(Integer::intValue).toArray();
    }

    /** The process that owns the blocks that are read. */
    private static final class Owner implements AutoCloseable {
        private final WorkerProcess worker;
        private final Map<String, byte[]> metadata = new LinkedHashMap<>();
        private final long address;
        private final int rawPort;
        private final Map<String, Integer> wirePorts = new LinkedHashMap<>();

        Owner(Set<String> agents, int threads, int blocks) throws IOException {
            worker = WorkerProcess.start(
                    "owner",
                    JavaCommand.likeThisProcess(TransferBench.class.getName()),
                    List.of(String.valueOf(threads), String.valueOf(blocks)));
            try {
                for (String name : agents) {
                    metadata.put(name, HexFormat.of().parseHex(worker.receive(DEADLINE)));
                }
                address = Long.parseLong(worker.receive(DEADLINE));
                rawPort = Integer.parseInt(worker.receive(DEADLINE));
                for (String name : WIRES.keySet()) {
                    wirePorts.put(name, Integer.parseInt(worker.receive(DEADLINE)));
                }
            } catch (IOException | RuntimeException e) {
                close();
                throw e;
            }
        }

        @Override
        public void close() {
            worker.close();
        }
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
        for (Map.Entry<String, Opener> each : openers.entrySet()) {
            TransferAgent agent = each.getValue().open("owner");
            agent.register(pool);
            WorkerProcess.answer(HexFormat.of().formatHex(agent.metadata()));
        }
        WorkerProcess.answer(String.valueOf(pool.memory().address()));
        ServerSocketChannel server =
                ServerSocketChannel.open().bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        WorkerProcess.answer(String.valueOf(server.socket().getLocalPort()));
        Thread.ofPlatform().daemon().start(() -> sendRaw(server, pool.memory()));
        for (String transport : WIRES.values()) {
            int port = FreePorts.inARow(1);
            WorkerProcess.answer(String.valueOf(port));
            Thread.ofPlatform().daemon().start(() -> sendOver(transport, port, pool.memory()));
        }
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

    /** This process' agents, its pool and its plain connection. */
    private static final class Here implements AutoCloseable {
        private final Owner owner;
        private final int blocks;
        private final Region pool;
        private final Map<String, TransferAgent> agents = new LinkedHashMap<>();
        private final LinkedHashMap<String, Peer> peers = new LinkedHashMap<>();
        private final SocketChannel raw;
        private final Map<String, Wire> wires = new LinkedHashMap<>();
        private final MemorySegment wanted;

        Here(Arena arena, Owner owner, Map<String, Opener> openers, int blocks)
                throws IOException, TransferException, PipeException {
            this.wanted = arena.allocate(ValueLayout.JAVA_LONG);
            this.owner = owner;
            this.blocks = blocks;
            this.pool = Region.allocate(arena, blocks * BLOCK_BYTES, "bench");
            pool.memory().fill((byte) 2);
            for (Map.Entry<String, Opener> each : openers.entrySet()) {
                TransferAgent agent = each.getValue().open("reader");
                agents.put(each.getKey(), agent);
                agent.register(pool);
                byte[] metadata = owner.metadata.get(each.getKey());
                if (metadata == null) {
                    throw new IllegalStateException("the other process has no agent for " + each.getKey());
                }
                peers.put(each.getKey(), agent.connect(metadata, DEADLINE));
            }
            raw = SocketChannel.open(new InetSocketAddress(InetAddress.getLoopbackAddress(), owner.rawPort));
            for (Map.Entry<String, Integer> each : owner.wirePorts.entrySet()) {
                try (WireTransport transport =
                        WireTransports.named("transport", String.valueOf(WIRES.get(each.getKey())))) {
                    wires.put(each.getKey(), transport.meet("127.0.0.1", each.getValue(), 1, DEADLINE));
                }
            }
        }

        private List<Range> ranges(int[] from, int[] to) {
            List<Range> ranges = new ArrayList<>();
            for (int i = 0; i < from.length; i++) {
                ranges.add(new Range(
                        pool.memory().address() + to[i] * BLOCK_BYTES,
                        owner.address + from[i] * BLOCK_BYTES,
                        BLOCK_BYTES));
            }
            return ranges;
        }

        /** Reads, and returns seconds until the last byte, as the agent has seen it. */
        private double read(String name, List<Range> ranges, Optional<RunDigests> digests) throws TransferException {
            TransferAgent agent = agents.get(name);
            Peer peer = peers.get(name);
            if (agent == null || peer == null) {
                throw new IllegalArgumentException("name=" + name);
            }
            Transfer transfer = digests.isPresent()
                    ? agent.start(Operation.READ, peer, ranges, Optional.empty(), DEADLINE, digests.get())
                    : agent.start(Operation.READ, peer, ranges, Optional.empty(), DEADLINE);
            return TransferWait.seconds(name, transfer);
        }

        /** Writes, and returns seconds until the last byte is at the peer, as the agent has seen it. */
        private double write(String name, List<Range> ranges) throws TransferException {
            TransferAgent agent = agents.get(name);
            Peer peer = peers.get(name);
            if (agent == null || peer == null) {
                throw new IllegalArgumentException("name=" + name);
            }
            return TransferWait.seconds(name, agent.start(Operation.WRITE, peer, ranges, Optional.empty(), DEADLINE));
        }

        /** Asks for bytes over a wire, and returns seconds until the last one. */
        private double receive(String name, long bytes) throws PipeException {
            Wire wire = wires.get(name);
            if (wire == null) {
                throw new IllegalArgumentException("name=" + name);
            }
            long begun = System.nanoTime();
            wanted.set(ValueLayout.JAVA_LONG, 0, bytes);
            wire.send(wanted, DEADLINE);
            wire.receive(pool.memory().asSlice(0, bytes), DEADLINE);
            return (System.nanoTime() - begun) / 1e9;
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
            agents.values().forEach(TransferAgent::close);
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

        private void copy(int[] sources, int[] targets) {
            together(
                    sources.length,
                    i -> MemorySegment.copy(from, sources[i] * BLOCK_BYTES, to, targets[i] * BLOCK_BYTES, BLOCK_BYTES));
        }

        private void together(int count, IntConsumer work) {
            AtomicInteger next = new AtomicInteger();
            List<Future<?>> futures = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                futures.add(executor.submit(() -> {
                    for (int at = next.getAndIncrement(); at < count; at = next.getAndIncrement()) {
                        work.accept(at);
                    }
                }));
            }
            for (Future<?> each : futures) {
                try {
                    each.get(DEADLINE.toNanos(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                    throw new IllegalStateException("interrupted", e);
                } catch (ExecutionException e) {
                    throw new IllegalStateException(e.getCause());
                } catch (TimeoutException e) {
                    throw new IllegalStateException("copying took longer than " + DEADLINE, e);
                }
            }
        }

        @Override
        public void close() {
            executor.close();
        }
    }
}
