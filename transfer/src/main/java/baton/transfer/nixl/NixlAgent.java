package baton.transfer.nixl;

import baton.kv.Deadline;
import baton.kv.OwnerThread;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.nixl.NixlApi.Status;
import baton.transfer.nixl.NixlMetadata.Identity;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.security.SecureRandom;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A transfer agent over NIXL: UCX (shared memory, TCP, RDMA) or what other backends it is given.
 *
 * <h2>One thread</h2>
 * All of NIXL is called by one thread of the agent; callers hand it commands. It makes progress for UCX too, on which peers depend
 * where their reads and writes are done in software (UCX over TCP), so that NIXL's own progress thread is not needed.
 *
 * <h2>What NIXL does not promise, and what is done about it</h2>
 * <ul>
 *   <li><b>The end of a cancelled request.</b> Releasing a request that is under way cancels it in UCX, which does not stop
 *       one-sided operations: a late answer may still be written into memory. So nothing is released while it is under way. A transfer
 *       is posted in pieces of at most {@value #FLIGHT_BYTES} bytes; after a cancel no further piece is posted and it is over when
 *       those under way are. If its time and then {@value #GRACE_MILLIS} ms are up and some still are, the native agent is destroyed,
 *       which ends its connections and with them every access to memory, and is made anew: all its peers are gone then, and must
 *       be connected again with {@linkplain #metadata() metadata} of both sides anew. It takes a peer that neither answers nor dies.
 *   <li><b>The death of a peer.</b> NIXL tells of it when a request fails, if at all. So each peer is probed: 16 bytes of its
 *       memory are read when it is connected and every {@value #PROBE_MILLIS} ms. Where the read fails the peer is gone. It is
 *       gone as well if the bytes are not those that its metadata names, which tells an agent that was closed, or another
 *       process in its place, from the one that was connected. A peer that is stopped but not dead is alive. Only peers that this agent
 *       connected to are probed. Agents that are not Baton's are probed without comparing.
 *   <li><b>The end of a registration.</b> Peers that have loaded it keep it, and on one host UCX reads and writes through the kernel
 *       (process_vm_readv) as long as the process lives. So an agent counts what it unregisters where its peers' probes read, and a
 *       peer probes before each write: what it has loaded must be of now, else the write is refused until it connects anew.
 *   <li><b>Checks of addresses.</b> Ranges are checked against both sides' registrations before NIXL sees them, and
 *       metadata before it is loaded (see {@link NixlMetadata}).
 * </ul>
 *
 * <p>The notification of a transfer is sent when its last piece is done, never for a transfer that was cancelled.
 *
 * <h2>Where UCX is not safe</h2>
 * Over TCP, UCX reads in software: the owner of the memory answers. If the reader dies while its answers are on their way, UCX may end
 * the <em>owner's</em> process ("Fatal: unexpected error: Endpoint timeout"). With NIXL 1.5.1, 3 of 31 readers killed in the middle of a
 * read did so, none of 62 writers, and none of 33 readers on the owner's host. No setting is known that prevents it (NIXL does
 * not work with {@code UCX_PROTO_ENABLE=n}). Reads by RDMA need no answers of that kind; they were not measured. So
 * {@code TransferAgents} takes this agent by itself only where there is an RDMA device, and an agent that closes lets
 * what it has under way end first.
 */
public final class NixlAgent implements TransferAgent {
    private static final Logger LOG = LoggerFactory.getLogger(NixlAgent.class);

    static final long FLIGHT_BYTES = 16 << 20;
    static final long GRACE_MILLIS = 500;
    static final long PROBE_MILLIS = 500;
    static final int FLIGHT_RANGES = 1024;
    private static final int FLIGHTS = 4;
    private static final int MAX_MESSAGE_BYTES = 1 << 20;
    private static final int MAX_MESSAGES = 65_536;
    private static final long MAX_MESSAGES_BYTES = 64 << 20;
    private static final long SCRATCH_BYTES = 64 << 10;
    private static final long PAGE = 4096;
    private static final long PROBE_BYTES = 2 * Long.BYTES;
    private static final Duration LOCAL_CALL = Duration.ofMinutes(5);
    private static final Duration CLOSE = Duration.ofSeconds(1);
    private static final Duration DRAIN = Duration.ofSeconds(3);
    private static final int SPINS = 64;
    private static final long WORKING_NANOS = 20_000;
    private static final long WARM_NANOS = 50_000;
    private static final long COLD_NANOS = 1_000_000;
    private static final long WARM_FOR_NANOS = TimeUnit.SECONDS.toNanos(5);
    private static final long PROBE_NANOS = TimeUnit.MILLISECONDS.toNanos(PROBE_MILLIS);

    /**
     * How to make an agent.
     *
     * @param backends names of NIXL's plugins, at least one that reaches other processes; {@code UCX} usually
     * @param parameters of backends, by their names, over their defaults; NIXL ignores keys it does not know
     */
    public record Settings(List<String> backends, Map<String, Map<String, String>> parameters) {
        public Settings {
            backends = List.copyOf(backends);
            parameters = Map.copyOf(parameters);
            if (backends.isEmpty()) {
                throw new IllegalArgumentException("backends=[] must name at least one");
            }
        }

        /** Backends with their default parameters. */
        public static Settings of(String... backends) {
            return new Settings(List.of(backends), Map.of());
        }
    }

    /**
     * What was moved since the agent was made, as NIXL's telemetry has it.
     *
     * @param transfers that were done
     * @param failures transfers that failed
     * @param requests of NIXL, several in a large transfer
     * @param descriptors ranges, neighbours counting as one
     * @param bytes moved
     * @param posting the sum of what posting took
     * @param moving the sum of what requests took from their post to their end
     */
    public record Totals(
            long transfers,
            long failures,
            long requests,
            long descriptors,
            long bytes,
            Duration posting,
            Duration moving) {
        private static final Totals NONE = new Totals(0, 0, 0, 0, 0, Duration.ZERO, Duration.ZERO);

        private Totals plus(NixlApi.RequestTelemetry request) {
            return new Totals(
                    transfers,
                    failures,
                    requests + 1,
                    descriptors + request.descriptors(),
                    bytes + request.bytes(),
                    posting.plus(request.postMicros(), ChronoUnit.MICROS),
                    moving.plus(request.transferMicros(), ChronoUnit.MICROS));
        }

        private Totals plus(boolean done) {
            return new Totals(
                    transfers + (done ? 1 : 0),
                    failures + (done ? 0 : 1),
                    requests,
                    descriptors,
                    bytes,
                    posting,
                    moving);
        }
    }

    private final String name;
    private final Settings settings;
    private final NixlApi api;
    private final Ticker ticker;
    private final Thread owner;
    private final OwnerThread ownerThread;

    private final Queue<Runnable> commands = new ConcurrentLinkedQueue<>();
    private final Queue<Notification> arrived = new ConcurrentLinkedQueue<>();
    private final AtomicInteger arrivedCount = new AtomicInteger();
    private final AtomicLong arrivedBytes = new AtomicLong();
    private final AtomicInteger leavingCount = new AtomicInteger();
    private final AtomicLong leavingBytes = new AtomicLong();
    private volatile boolean closing;
    private volatile boolean ended;
    private volatile Totals totals = Totals.NONE;

    // State of the owner thread, see ownerThread.check().
    private final Arena arena = Arena.ofShared();
    private final MemorySegment scratch = arena.allocate(SCRATCH_BYTES, PAGE);
    private final Deque<Integer> slots = new ArrayDeque<>();
    private final List<Held> registrations = new ArrayList<>();
    private final List<MemorySegment> backends = new ArrayList<>();
    private final Map<String, NixlPeer> peers = new HashMap<>();
    private final List<NixlPeer> leaving = new ArrayList<>();
    private final List<NixlTransfer> active = new ArrayList<>();
    private MemorySegment agent = MemorySegment.NULL;
    private MemorySegment notificationMap = MemorySegment.NULL;
    private volatile Runnable progress = () -> {};
    private Identity identity = new Identity(0, 0, 0);
    private int lives;
    private long lastWork;
    private int idleRounds;
    private boolean droppingSaid;

    private NixlAgent(NixlLibrary.Found library, String prefix, Settings settings, Ticker ticker) {
        this.api = library.api();
        this.ticker = ticker;
        this.lastWork = ticker.nanos();
        this.settings = settings;
        name = "%s-%d-%016x".formatted(prefix, ProcessHandle.current().pid(), new SecureRandom().nextLong());
        owner = Thread.ofPlatform().daemon().name("nixl-" + name).unstarted(this::run);
        ownerThread = OwnerThread.of(owner);
    }

    /**
     * Makes an agent with its backends.
     *
     * @param prefix with which its name begins
     * @throws TransferException if a backend cannot be created, or none of them reaches other processes
     */
    public static NixlAgent open(NixlLibrary.Found library, String prefix, Settings settings) throws TransferException {
        return open(library, prefix, settings, Ticker.system());
    }

    /** @param ticker the clock of timeouts and probes */
    public static NixlAgent open(NixlLibrary.Found library, String prefix, Settings settings, Ticker ticker)
            throws TransferException {
        NixlAgent made = new NixlAgent(library, prefix, settings, ticker);
        CompletableFuture<Boolean> begun = new CompletableFuture<>();
        made.commands.add(() -> {
            try {
                made.begin();
                begun.complete(true);
            } catch (TransferException | RuntimeException e) {
                begun.completeExceptionally(e);
            }
        });
        made.owner.start();
        try {
            await(begun, LOCAL_CALL, "NIXL's agent is not made within ");
            return made;
        } catch (TransferException | RuntimeException e) {
            made.close();
            throw e;
        }
    }

    @Override
    public String name() {
        return name;
    }

    /** What was moved so far. */
    public Totals totals() {
        return totals;
    }

    /** Names of the backends that could be created in this process. */
    public List<String> plugins() throws TransferException {
        return call(() -> api.plugins(agent));
    }

    /** The parameters that a backend tells of, with their defaults. */
    public Map<String, String> backendDefaults(String backend) throws TransferException {
        return call(() -> api.backendDefaults(agent, backend));
    }

    @Override
    public Registration register(Region region) throws TransferException {
        return call(() -> {
            Held held = new Held(region.memory());
            api.register(agent, backends, held.address, held.bytes);
            registrations.add(held);
            return held;
        });
    }

    @Override
    public byte[] metadata() {
        try {
            return call(() -> NixlMetadata.seal(api.localMetadata(agent), identity));
        } catch (TransferException e) {
            throw new IllegalStateException("agent " + name + " has no metadata: " + e.getMessage(), e);
        }
    }

    @Override
    public Peer connect(byte[] metadata, Duration timeout) throws TransferException {
        NixlMetadata parsed = NixlMetadata.parse(metadata);
        CompletableFuture<Peer> answered = new CompletableFuture<>();
        submit(() -> tryConnecting(parsed, answered));
        try {
            return await(answered, timeout, "peer " + parsed.agent() + " did not answer within ");
        } catch (TransferException e) {
            submit(() -> Optional.ofNullable(peers.get(parsed.agent()))
                    .filter(peer -> !peer.answered)
                    .ifPresent(peer -> gone(peer, "did not answer when it was connected")));
            answered.completeExceptionally(e);
            throw e;
        }
    }

    @Override
    public Transfer start(
            Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        NixlTransfer transfer =
                new NixlTransfer(operation, peer, ranges, notification, Deadline.after(ticker, timeout), ticker, owner);
        submit(() -> begin(transfer));
        if (ended) {
            transfer.end(new Transfer.State.Failed(Transfer.Cause.REFUSED, "agent " + name + " is closed"));
        }
        return transfer;
    }

    @Override
    public void notify(Peer peer, byte[] message) throws TransferException {
        if (message.length > MAX_MESSAGE_BYTES) {
            throw new TransferException(
                    "a message of " + message.length + " bytes is too long, at most " + MAX_MESSAGE_BYTES);
        }
        if (!(peer instanceof NixlPeer connected) || !connected.agent().equals(this)) {
            throw new TransferException("peer " + peer.name() + " is another agent's");
        }
        if (!connected.alive() || ended) {
            throw new TransferException(ended ? "agent " + name + " is closed" : connected.why());
        }
        if (leavingCount.get() >= MAX_MESSAGES || leavingBytes.get() >= MAX_MESSAGES_BYTES) {
            throw new TransferException(leavingCount.get() + " messages wait to be sent, no more are taken");
        }
        byte[] copy = message.clone();
        leavingCount.incrementAndGet();
        leavingBytes.addAndGet(copy.length);
        submit(() -> {
            leavingCount.decrementAndGet();
            leavingBytes.addAndGet(-copy.length);
            send(connected, copy);
        });
    }

    @Override
    public List<Notification> takeNotifications() {
        List<Notification> taken = new ArrayList<>();
        for (Notification message; (message = arrived.poll()) != null; ) {
            arrivedCount.decrementAndGet();
            arrivedBytes.addAndGet(-message.message().length);
            taken.add(message);
        }
        return taken;
    }

    @Override
    public void close() {
        closing = true;
        LockSupport.unpark(owner);
        boolean interrupted = false;
        while (owner.isAlive() && !owner.equals(Thread.currentThread())) {
            try {
                owner.join();
            } catch (InterruptedException e) {
                // Memory may only be given back when NIXL is done with it.
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private interface Task<T> {
        T run() throws TransferException;
    }

    /** Has the owner thread run a command. */
    void submit(Runnable command) {
        commands.add(command);
        LockSupport.unpark(owner);
    }

    private <T> T call(Task<T> task) throws TransferException {
        CompletableFuture<T> result = new CompletableFuture<>();
        submit(() -> {
            try {
                result.complete(task.run());
            } catch (TransferException | RuntimeException e) {
                result.completeExceptionally(e);
            }
        });
        if (ended) {
            throw new TransferException("agent " + name + " is closed");
        }
        return await(result, LOCAL_CALL, "NIXL did not return within ");
    }

    private static <T> T await(CompletableFuture<T> result, Duration limit, String otherwise) throws TransferException {
        try {
            return result.get(limit.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            throw new TransferException(otherwise + limit.toMillis() + " ms", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TransferException("interrupted", e);
        } catch (ExecutionException e) {
            Throwable cause = Objects.requireNonNullElse(e.getCause(), e);
            if (cause instanceof RuntimeException wrong) {
                throw wrong;
            }
            throw new TransferException(String.valueOf(cause.getMessage()), cause);
        }
    }

    /** The owner thread. Methods that check {@link #ownerThread}, and those that they call, are run by it. */
    private void run() {
        try {
            while (!closing) {
                boolean worked = false;
                List<Runnable> waiting = new ArrayList<>();
                for (Runnable command; (command = commands.poll()) != null; ) {
                    waiting.add(command);
                }
                for (Runnable command : waiting) {
                    command.run();
                    worked = true;
                }
                if (agent.address() != 0) {
                    worked |= step();
                }
                idle(worked);
            }
        } catch (RuntimeException | Error e) {
            LOG.error("NIXL agent {} ends", name, e);
        } finally {
            end();
        }
    }

    private void idle(boolean worked) {
        long now = ticker.nanos();
        if (worked) {
            lastWork = now;
            idleRounds = 0;
            return;
        }
        if (!commands.isEmpty() || closing) {
            return;
        }
        if (!active.isEmpty()) {
            if (++idleRounds < SPINS) {
                Thread.onSpinWait();
            } else {
                LockSupport.parkNanos(WORKING_NANOS);
            }
        } else {
            LockSupport.parkNanos(now - lastWork < WARM_FOR_NANOS ? WARM_NANOS : COLD_NANOS);
        }
    }

    private boolean step() {
        ownerThread.check();
        boolean worked = false;
        for (NixlTransfer transfer : List.copyOf(active)) {
            // Advancing one transfer may end another.
            worked |= active.contains(transfer) && advance(transfer);
        }
        for (Notification message : api.notifications(agent, notificationMap)) {
            worked = true;
            arrive(message);
        }
        for (NixlPeer peer : List.copyOf(peers.values())) {
            probe(peer);
        }
        for (NixlPeer peer : List.copyOf(leaving)) {
            leave(peer);
        }
        return worked;
    }

    private void begin() throws TransferException {
        try {
            createNative();
        } catch (TransferException | RuntimeException e) {
            destroyNative("its connections could not be made");
            throw e;
        }
    }

    private void createNative() throws TransferException {
        ownerThread.check();
        agent = api.createAgent(nativeName());
        notificationMap = api.createNotificationMap();
        for (String backend : settings.backends()) {
            try {
                backends.add(
                        api.createBackend(agent, backend, settings.parameters().getOrDefault(backend, Map.of())));
            } catch (TransferException e) {
                throw new TransferException(
                        "NIXL has no backend " + backend + ": " + e.getMessage() + "; there are " + api.plugins(agent),
                        e);
            }
        }
        scratch.fill((byte) 0);
        identify(new Identity(scratch.address(), new SecureRandom().nextLong() | 1, identity.revision()));
        slots.clear();
        for (int slot = 1; slot < SCRATCH_BYTES / PROBE_BYTES; slot++) {
            slots.add(slot);
        }
        api.register(agent, backends, scratch.address(), scratch.byteSize());
        for (Held held : registrations) {
            api.register(agent, backends, held.address, held.bytes);
        }
        try {
            byte[] _ = api.localMetadata(agent);
        } catch (TransferException e) {
            throw new TransferException(
                    "none of the backends " + settings.backends() + " reaches other processes: " + e.getMessage(), e);
        }
    }

    private void identify(Identity now) {
        ownerThread.check();
        identity = now;
        scratch.set(ValueLayout.JAVA_LONG, 0, now.word());
        scratch.set(ValueLayout.JAVA_LONG, Long.BYTES, now.revision());
    }

    private String nativeName() {
        return lives == 0 ? name : name + "~" + lives;
    }

    /** The name under which an agent was made, whatever it calls itself after its connections had to be made anew. */
    static String firstName(String nativeName) {
        return nativeName.replaceFirst("~[0-9]+$", "");
    }

    /** Destroys the native agent, after which nothing touches memory for it. */
    private void destroyNative(String why) {
        ownerThread.check();
        scratch.set(ValueLayout.JAVA_LONG, 0, 0);
        for (NixlTransfer transfer : List.copyOf(active)) {
            transfer.flights.forEach(flight -> api.release(agent, flight.request()));
            transfer.flights.clear();
        }
        List<NixlPeer> all = new ArrayList<>(peers.values());
        all.addAll(leaving);
        for (NixlPeer peer : all) {
            peer.probe.ifPresent(request -> api.release(agent, request));
            peer.probe = Optional.empty();
            peer.end(why);
        }
        peers.clear();
        leaving.clear();
        if (agent.address() != 0) {
            if (notificationMap.address() != 0) {
                api.destroyNotificationMap(notificationMap);
            }
            api.destroyAgent(agent);
            backends.forEach(api::destroyBackendHandle);
        }
        agent = MemorySegment.NULL;
        notificationMap = MemorySegment.NULL;
        backends.clear();
    }

    private void restart(String why) {
        LOG.warn("NIXL agent {} closes all connections and begins anew: {}", name, why);
        destroyNative("connections were made anew: " + why);
        for (NixlTransfer transfer : List.copyOf(active)) {
            finish(
                    transfer,
                    transfer.ending.orElseGet(() ->
                            new Transfer.State.Failed(Transfer.Cause.PEER_GONE, "connections were made anew: " + why)));
        }
        lives++;
        try {
            begin();
        } catch (TransferException e) {
            LOG.error("NIXL agent {} cannot begin anew and is closed: {}", name, e.getMessage());
            closing = true;
        }
    }

    private void end() {
        ended = true;
        try {
            if (agent.address() != 0) {
                drain();
            }
            destroyNative("this agent is closed");
        } finally {
            for (NixlTransfer transfer : List.copyOf(active)) {
                finish(transfer, new Transfer.State.Failed(Transfer.Cause.CANCELLED, "agent " + name + " is closed"));
            }
            // Commands fail on an agent that has ended, which completes the futures that callers wait for.
            for (Runnable command; (command = commands.poll()) != null; ) {
                command.run();
            }
            arena.close();
        }
    }

    /**
     * Lets what is under way end by itself, which it does unless a peer does not answer: UCX takes it badly if its answers find
     * no agent. Peers can see meanwhile that this agent is closed.
     */
    private void drain() {
        scratch.set(ValueLayout.JAVA_LONG, 0, 0);
        for (NixlTransfer transfer : active) {
            transfer.end("agent " + name + " is closed");
        }
        Deadline limit = Deadline.after(ticker, DRAIN);
        boolean busy = true;
        while (busy && !limit.isOver()) {
            for (NixlTransfer transfer : List.copyOf(active)) {
                boolean _ = advance(transfer);
            }
            api.notifications(agent, notificationMap).forEach(this::arrive);
            busy = !active.isEmpty();
            for (NixlPeer peer : List.copyOf(peers.values())) {
                if (peer.probe.isPresent()) {
                    probe(peer);
                    busy |= peer.probe.isPresent();
                }
            }
            Thread.onSpinWait();
        }
    }

    private void tryConnecting(NixlMetadata metadata, CompletableFuture<Peer> answered) {
        ownerThread.check();
        if (leaving.stream().anyMatch(peer -> peer.metadata.agent().equals(metadata.agent()))) {
            // What is under way over an earlier connection has to be over first; the caller waits as long as it wants
            // to.
            if (!answered.isDone()) {
                submit(() -> tryConnecting(metadata, answered));
            }
            return;
        }
        try {
            beginConnecting(metadata, answered);
        } catch (TransferException | RuntimeException e) {
            answered.completeExceptionally(e);
        }
    }

    private void beginConnecting(NixlMetadata metadata, CompletableFuture<Peer> answered) throws TransferException {
        if (ended) {
            throw new TransferException("agent " + name + " is closed");
        }
        if (firstName(metadata.agent()).equals(name)) {
            throw new TransferException("agent " + name + " cannot connect to itself");
        }
        Optional<NixlPeer> known = Optional.ofNullable(peers.get(metadata.agent()));
        if (known.isPresent() && !known.get().is(metadata)) {
            throw new TransferException("this is not the agent " + metadata.agent() + " that is connected");
        }
        // The same agent may have been made anew, its earlier life is over then.
        for (NixlPeer earlier : List.copyOf(peers.values())) {
            if (earlier.name().equals(firstName(metadata.agent()))
                    && !earlier.metadata.agent().equals(metadata.agent())) {
                gone(earlier, "made its connections anew");
            }
        }
        String loaded = api.loadRemoteMetadata(agent, metadata.blob());
        if (!loaded.equals(metadata.agent())) {
            Status _ = api.invalidateRemote(agent, loaded);
            throw new TransferException("NIXL reads the name " + loaded + ", expected " + metadata.agent());
        }
        NixlPeer peer = known.orElseGet(() -> new NixlPeer(this, metadata));
        peer.metadata = metadata;
        peers.put(metadata.agent(), peer);
        Status connected = api.connect(agent, metadata.agent());
        if (connected.failed()) {
            gone(peer, "NIXL does not connect to it: " + connected);
            throw new TransferException(peer.why());
        }
        peer.waiting.add(answered);
        peer.nextProbe = ticker.nanos();
        probe(peer);
    }

    /** Looks after a peer's probe: posts one if it is time, and draws conclusions from one that is over. */
    private void probe(NixlPeer peer) {
        ownerThread.check();
        if (peer.probe.isEmpty()) {
            if (peer.nextProbe - ticker.nanos() > 0 || peers.get(peer.metadata.agent()) != peer) {
                return;
            }
            Optional<Range> target = probeTarget(peer);
            if (target.isEmpty()) {
                // A peer without memory of its own can be told nothing and asked nothing.
                peer.nextProbe = ticker.nanos() + PROBE_NANOS;
                peer.checks++;
                peer.answered();
                return;
            }
            try {
                MemorySegment request =
                        api.createRequest(agent, Operation.READ, List.of(target.get()), peer.metadata.agent());
                peer.probe = Optional.of(request);
                conclude(peer, request, api.post(agent, request));
            } catch (TransferException e) {
                gone(peer, "NIXL knows it no more");
            }
        } else {
            MemorySegment request = peer.probe.get();
            conclude(peer, request, api.status(agent, request));
        }
    }

    private Optional<Range> probeTarget(NixlPeer peer) {
        if (peer.slot == 0) {
            peer.slot = Optional.ofNullable(slots.poll()).orElse(0);
        }
        if (peer.slot == 0) {
            return Optional.empty();
        }
        long local = scratch.address() + peer.slot * PROBE_BYTES;
        return peer.metadata
                .identity()
                .map(word -> new Range(local, word.address(), PROBE_BYTES))
                .or(() -> peer.metadata.memory().stream()
                        .findFirst()
                        .map(memory -> new Range(local, memory.address(), 1)));
    }

    private void conclude(NixlPeer peer, MemorySegment request, Status status) {
        if (status == Status.IN_PROGRESS) {
            return;
        }
        api.release(agent, request);
        peer.probe = Optional.empty();
        peer.nextProbe = ticker.nanos() + PROBE_NANOS;
        long word = scratch.get(ValueLayout.JAVA_LONG, peer.slot * PROBE_BYTES);
        long revision = scratch.get(ValueLayout.JAVA_LONG, peer.slot * PROBE_BYTES + Long.BYTES);
        Optional<Identity> expected = peer.metadata.identity();
        if (status.failed()) {
            gone(peer, "cannot be read from any more");
        } else if (expected.map(one -> one.word() != word).orElse(false)) {
            gone(peer, "was closed, or another process has its place");
        } else {
            peer.checks++;
            peer.outdated = expected.map(one -> one.revision() != revision).orElse(false);
            peer.answered();
        }
    }

    /** A peer cannot be used any more. */
    void gone(NixlPeer peer, String why) {
        ownerThread.check();
        peer.end("peer " + peer.name() + " " + why);
        if (peers.remove(peer.metadata.agent(), peer)) {
            leaving.add(peer);
            leave(peer);
        }
    }

    /** Forgets a peer that is gone as soon as NIXL has nothing under way to it. */
    private void leave(NixlPeer peer) {
        ownerThread.check();
        peer.probe.ifPresent(request -> {
            if (api.status(agent, request) != Status.IN_PROGRESS) {
                api.release(agent, request);
                peer.probe = Optional.empty();
            }
        });
        boolean quiet = peer.probe.isEmpty()
                && active.stream().noneMatch(transfer -> transfer.peer == peer && !transfer.flights.isEmpty());
        if (quiet) {
            Status _ = api.invalidateRemote(agent, peer.metadata.agent());
            if (peer.slot != 0) {
                slots.add(peer.slot);
                peer.slot = 0;
            }
            leaving.remove(peer);
        }
    }

    private void begin(NixlTransfer transfer) {
        ownerThread.check();
        active.add(transfer);
        if (ended) {
            finish(transfer, new Transfer.State.Failed(Transfer.Cause.REFUSED, "agent " + name + " is closed"));
        } else if (!(transfer.peer instanceof NixlPeer peer) || !peer.agent().equals(this)) {
            finish(
                    transfer,
                    new Transfer.State.Failed(
                            Transfer.Cause.REFUSED, "peer " + transfer.peer.name() + " is another agent's"));
        } else {
            try {
                cut(peer, transfer);
                if (transfer.operation == Operation.WRITE
                        && peer.metadata.identity().isPresent()) {
                    transfer.checksNeeded = peer.checks + (peer.probe.isPresent() ? 2 : 1);
                }
                boolean _ = advance(transfer);
            } catch (TransferException e) {
                finish(transfer, new Transfer.State.Failed(Transfer.Cause.REFUSED, String.valueOf(e.getMessage())));
            }
        }
    }

    /** Checks a transfer's ranges and makes the pieces that NIXL gets: neighbours together, none longer than a flight. */
    private void cut(NixlPeer peer, NixlTransfer transfer) throws TransferException {
        List<NixlMetadata.Memory> remote = peer.metadata.memory().stream()
                .filter(memory -> peer.metadata
                        .identity()
                        .filter(word -> memory.contains(word.address(), Long.BYTES))
                        .isEmpty())
                .toList();
        Optional<Held> lastHeld = Optional.empty();
        Optional<NixlMetadata.Memory> lastMemory = Optional.empty();
        long local = 0;
        long far = 0;
        long bytes = 0;
        for (Range range : transfer.ranges) {
            Optional<Held> held = lastHeld.filter(same -> same.contains(range.local(), range.bytes()))
                    .or(() -> registrations.stream()
                            .filter(one -> one.contains(range.local(), range.bytes()))
                            .findFirst());
            Optional<NixlMetadata.Memory> memory = lastMemory
                    .filter(same -> same.contains(range.remote(), range.bytes()))
                    .or(() -> remote.stream()
                            .filter(one -> one.contains(range.remote(), range.bytes()))
                            .findFirst());
            if (held.isEmpty()) {
                throw new TransferException(range + ": its local part is not in memory that is registered here");
            }
            if (memory.isEmpty()) {
                throw new TransferException(
                        range + ": its remote part is not in memory that " + peer.name() + " has registered");
            }
            boolean neighbour = bytes > 0
                    && local + bytes == range.local()
                    && far + bytes == range.remote()
                    && held.equals(lastHeld)
                    && memory.equals(lastMemory);
            if (neighbour) {
                bytes += range.bytes();
            } else {
                transfer.add(local, far, bytes);
                local = range.local();
                far = range.remote();
                bytes = range.bytes();
            }
            lastHeld = held;
            lastMemory = memory;
        }
        transfer.add(local, far, bytes);
    }

    /** Takes a transfer as far as it gets without waiting. */
    private boolean advance(NixlTransfer transfer) {
        ownerThread.check();
        NixlPeer peer = (NixlPeer) transfer.peer;
        boolean worked = false;
        for (NixlTransfer.Flight flight : List.copyOf(transfer.flights)) {
            Status status = api.status(agent, flight.request());
            if (status != Status.IN_PROGRESS) {
                worked = true;
                transfer.flights.remove(flight);
                land(transfer, peer, flight.request(), flight.bytes(), status);
            }
        }
        boolean checked = peer.checks >= transfer.checksNeeded;
        if (!checked && peer.alive()) {
            peer.nextProbe = ticker.nanos();
            probe(peer);
            checked = peer.checks >= transfer.checksNeeded;
        }
        if (transfer.ending.isEmpty()) {
            if (transfer.cancelled) {
                transfer.ending = Optional.of(new Transfer.State.Failed(Transfer.Cause.CANCELLED, "cancelled"));
            } else if (!peer.alive()) {
                transfer.ending = Optional.of(new Transfer.State.Failed(Transfer.Cause.PEER_GONE, peer.why()));
            } else if (checked && transfer.checksNeeded > 0 && peer.outdated) {
                transfer.ending = Optional.of(new Transfer.State.Failed(
                        Transfer.Cause.REFUSED,
                        peer.name()
                                + " has unregistered memory since it was connected; connect with its metadata of now"));
            } else if (transfer.deadline.isOver()) {
                transfer.ending = Optional.of(new Transfer.State.Failed(
                        Transfer.Cause.TIMEOUT,
                        "%d of %d bytes were moved within %s"
                                .formatted(transfer.moved, transfer.bytes, transfer.deadline)));
            }
        }
        int posted = 0;
        while (checked
                && transfer.ending.isEmpty()
                && transfer.hasMore()
                && transfer.flights.size() < FLIGHTS
                && posted < FLIGHTS) {
            post(transfer, peer);
            posted++;
        }
        worked |= posted > 0;
        if (transfer.flights.isEmpty()) {
            if (transfer.ending.isPresent()) {
                finish(transfer, transfer.ending.get());
            } else if (checked && !transfer.hasMore()) {
                complete(transfer, peer);
            }
        } else if (!ended && transfer.grace.isOver()) {
            restart("a transfer with %s is under way %d ms after its time was up".formatted(peer.name(), GRACE_MILLIS));
        }
        return worked;
    }

    private void post(NixlTransfer transfer, NixlPeer peer) {
        List<Range> pieces = transfer.take();
        long bytes = pieces.stream().mapToLong(Range::bytes).sum();
        try {
            MemorySegment request = api.createRequest(agent, transfer.operation, pieces, peer.metadata.agent());
            Status status = api.post(agent, request);
            if (status == Status.IN_PROGRESS) {
                transfer.flights.add(new NixlTransfer.Flight(request, bytes));
            } else {
                land(transfer, peer, request, bytes, status);
            }
        } catch (TransferException e) {
            fail(transfer, peer, Transfer.Cause.REFUSED, String.valueOf(e.getMessage()));
        }
    }

    private void land(NixlTransfer transfer, NixlPeer peer, MemorySegment request, long bytes, Status status) {
        if (status.failed()) {
            api.release(agent, request);
            fail(transfer, peer, Transfer.Cause.TRANSPORT, "NIXL reports " + status);
        } else {
            totals = api.telemetry(agent, request).map(totals::plus).orElse(totals);
            api.release(agent, request);
            transfer.moved += bytes;
        }
    }

    /** A failure is the peer's death if the peer cannot be probed any more. */
    private void fail(NixlTransfer transfer, NixlPeer peer, Transfer.Cause cause, String message) {
        if (peer.alive()) {
            peer.nextProbe = ticker.nanos();
            probe(peer);
        }
        if (transfer.ending.isEmpty()) {
            transfer.ending = Optional.of(
                    peer.alive()
                            ? new Transfer.State.Failed(cause, message)
                            : new Transfer.State.Failed(Transfer.Cause.PEER_GONE, peer.why() + "; " + message));
        }
    }

    private void complete(NixlTransfer transfer, NixlPeer peer) {
        Status sent = transfer.notification
                .map(message -> api.notify(agent, peer.metadata.agent(), message))
                .orElse(Status.SUCCESS);
        if (sent.failed()) {
            fail(transfer, peer, Transfer.Cause.TRANSPORT, "its notification could not be sent: " + sent);
            finish(transfer, transfer.ending.orElseThrow());
        } else {
            finish(
                    transfer,
                    new Transfer.State.Done(transfer.bytes, Duration.ofNanos(ticker.nanos() - transfer.started)));
        }
    }

    private void finish(NixlTransfer transfer, Transfer.State state) {
        ownerThread.check();
        active.remove(transfer);
        totals = totals.plus(state instanceof Transfer.State.Done);
        transfer.end(state);
        progress.run();
    }

    @Override
    public void onProgress(Runnable progress) {
        this.progress = progress;
    }

    private void send(NixlPeer peer, byte[] message) {
        ownerThread.check();
        if (peers.get(peer.metadata.agent()) == peer
                && api.notify(agent, peer.metadata.agent(), message).failed()) {
            peer.nextProbe = ticker.nanos();
            probe(peer);
        }
    }

    private void arrive(Notification message) {
        ownerThread.check();
        if (arrivedCount.get() >= MAX_MESSAGES || arrivedBytes.get() >= MAX_MESSAGES_BYTES) {
            if (!droppingSaid) {
                LOG.warn("NIXL agent {} drops messages: {} have arrived and are not taken", name, arrivedCount.get());
                droppingSaid = true;
            }
            return;
        }
        arrivedCount.incrementAndGet();
        arrivedBytes.addAndGet(message.message().length);
        arrived.add(new Notification(firstName(message.from()), message.message()));
        progress.run();
    }

    /** Memory that is registered with NIXL. */
    private final class Held implements Registration {
        private final long address;
        private final long bytes;

        Held(MemorySegment memory) {
            address = memory.address();
            bytes = memory.byteSize();
        }

        private boolean contains(long start, long length) {
            return start >= address && length <= bytes && start - address <= bytes - length;
        }

        private boolean used(NixlTransfer transfer) {
            return !transfer.flights.isEmpty()
                    && transfer.ranges.stream().anyMatch(range -> contains(range.local(), range.bytes()));
        }

        /** Transfers from or into the memory end as refused, and their connections closed if they are not over in a second. */
        @Override
        public void close() {
            CompletableFuture<Boolean> closed = new CompletableFuture<>();
            Deadline limit = Deadline.after(ticker, CLOSE);
            submit(() -> tryClose(closed, limit));
            if (ended) {
                return;
            }
            try {
                await(closed, LOCAL_CALL, "NIXL did not return within ");
            } catch (TransferException e) {
                throw new IllegalStateException("memory could not be unregistered: " + e.getMessage(), e);
            }
        }

        private void tryClose(CompletableFuture<Boolean> closed, Deadline limit) {
            ownerThread.check();
            if (!registrations.contains(this) || agent.address() == 0) {
                closed.complete(true);
                return;
            }
            for (NixlTransfer transfer : active) {
                if (transfer.ending.isEmpty()
                        && transfer.ranges.stream().anyMatch(range -> contains(range.local(), range.bytes()))) {
                    transfer.ending = Optional.of(
                            new Transfer.State.Failed(Transfer.Cause.REFUSED, "its memory was unregistered"));
                }
            }
            if (active.stream().anyMatch(this::used)) {
                if (!limit.isOver()) {
                    submit(() -> tryClose(closed, limit));
                    return;
                }
                registrations.remove(this);
                identify(new Identity(identity.address(), identity.word(), identity.revision() + 1));
                restart("memory is unregistered while a transfer uses it");
            } else {
                registrations.remove(this);
                identify(new Identity(identity.address(), identity.word(), identity.revision() + 1));
                api.deregister(agent, backends, address, bytes);
            }
            closed.complete(true);
        }
    }
}
