package baton.transfer.nixl;

import baton.kv.Deadline;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A transfer agent over NIXL: UCX (shared memory, TCP, RDMA) or the configured backends.
 *
 * <h2>One thread</h2>
 * All of NIXL is called by one thread of the agent; callers hand it commands. It makes progress for UCX too, on which peers depend
 * where their reads and writes are done in software (UCX over TCP), so that NIXL's own progress thread is not needed.
 * It owns the state of {@link NixlNativeAgent}, {@link NixlScratch}, {@link NixlPeers} and {@link NixlTransfers}; this class begins and
 * ends them together.
 *
 * <h2>Promises that NIXL does not make, and the remedies</h2>
 * <ul>
 *   <li><b>The end of a cancelled request.</b> Releasing a request that is under way cancels it in UCX, which does not stop
 *       one-sided operations: a late answer may still be written into memory. So nothing is released while it is under way. A transfer
 *       is posted in pieces of at most {@value #FLIGHT_BYTES} bytes; after a cancel no further piece is posted and it is over when
 *       those under way are. If its time and then {@value #GRACE_MILLIS} ms are up and some still are, the native agent is destroyed,
 *       which ends its connections and with them every access to memory, and is made anew: all its peers are gone then, and must
 *       be connected again with {@linkplain #metadata() metadata} of both sides anew. It takes a peer that neither answers nor dies.
 *   <li><b>The death of a peer.</b> NIXL reports it when a request fails, if at all. So each peer is probed: 16 bytes of its
 *       memory are read when it is connected and every {@value #PROBE_MILLIS} ms. Where the read fails the peer is gone. It is
 *       gone as well if the bytes are not those that its metadata names, which detects an agent that was closed, or another process in its
 *       place. A peer that is stopped but not dead is alive. Only peers that this agent connected to are probed. Agents that are not
 *       Baton's are probed without comparing.
 *   <li><b>The end of a registration.</b> Peers that have loaded it keep it, and on one host UCX reads and writes through the kernel
 *       (process_vm_readv) as long as the process lives. So an agent counts unregistered memory where its peers' probes read, and a peer
 *       probes before each write: its loaded metadata must be current, else the write is refused until it connects anew.
 *   <li><b>Checks of addresses.</b> Ranges are checked against both sides' registrations before NIXL sees them, and
 *       metadata before it is loaded (see {@link NixlMetadata}).
 * </ul>
 *
 * <p>The notification of a transfer is sent when its last piece is done, never for a transfer that was cancelled.
 *
 * <h2>Where UCX is not safe</h2>
 * Over TCP, UCX reads in software: the owner of the memory answers. If the reader dies while its answers are
 * on their way, UCX may end the <em>owner's</em> process ("Fatal: unexpected error: Endpoint timeout"). With NIXL 1.5.1, 3 of 31 readers
 * killed in the middle of a read did so, none of 62 writers, and none of 33 readers on the owner's host. No setting is known that prevents
 * it (NIXL does not work with {@code UCX_PROTO_ENABLE=n}). Reads by RDMA need no answers of that kind; they were not measured. So
 * {@code TransferAgents} takes this agent by itself only where there is an RDMA device, and an agent that closes waits for its requests
 * under way first.
 */
public final class NixlAgent implements TransferAgent {
    private static final Logger LOG = LoggerFactory.getLogger(NixlAgent.class);

    static final long FLIGHT_BYTES = 16 << 20;
    static final long GRACE_MILLIS = 500;
    static final long PROBE_MILLIS = 500;
    private static final Duration CLOSE = Duration.ofSeconds(1);
    private static final Duration DRAIN = Duration.ofSeconds(3);

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

    private final String name;
    private final Ticker ticker;
    private final NixlApi api;
    private final NixlThread thread;
    private volatile Runnable progress = () -> {};

    // State of the owner thread, see NixlThread.check().
    private final NixlScratch scratch;
    private final NixlNativeAgent nixl;
    private final NixlPeers peers;
    private final NixlTransfers transfers;
    private final NixlNotifications notifications;

    private NixlAgent(NixlLibrary.Found library, String prefix, Settings settings, Ticker ticker) {
        this.ticker = ticker;
        api = library.api();
        name = "%s-%d-%016x".formatted(prefix, ProcessHandle.current().pid(), new SecureRandom().nextLong());
        thread = new NixlThread(name, ticker, new Work());
        scratch = new NixlScratch(thread);
        nixl = new NixlNativeAgent(api, name, settings, thread, scratch);
        peers = new NixlPeers(api, name, ticker, thread, scratch, nixl, this::isUnderWay);
        transfers = new NixlTransfers(api, ticker, thread, nixl, peers, this::progressed, this::restart);
        notifications = new NixlNotifications(api, name, thread, nixl, peers, this::progressed);
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
        made.thread.submit(() -> {
            try {
                made.begin();
                begun.complete(true);
            } catch (TransferException | RuntimeException e) {
                begun.completeExceptionally(e);
            }
        });
        made.thread.start();
        try {
            NixlThread.await(begun, NixlThread.LOCAL_CALL, "NIXL's agent is not made within ");
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

    @Override
    public Registration register(Region region) throws TransferException {
        return thread.call(() -> {
            NixlRegistration registration = new NixlRegistration(this, NixlMemory.of(region));
            nixl.register(registration);
            return registration;
        });
    }

    @Override
    public boolean reaches(KvMemory.Device memory) {
        return NixlMemory.isKnown(memory.device());
    }

    /** Called by any thread, as {@link Registration#close}. */
    void unregister(NixlRegistration registration) {
        CompletableFuture<Boolean> closed = new CompletableFuture<>();
        Deadline limit = Deadline.after(ticker, CLOSE);
        thread.submit(() -> tryUnregistering(registration, closed, limit));
        if (thread.hasEnded()) {
            return;
        }
        try {
            NixlThread.await(closed, NixlThread.LOCAL_CALL, "NIXL did not return within ");
        } catch (TransferException e) {
            throw new IllegalStateException("memory could not be unregistered: " + e.getMessage(), e);
        }
    }

    private void tryUnregistering(NixlRegistration registration, CompletableFuture<Boolean> closed, Deadline limit) {
        thread.check();
        if (!nixl.holds(registration)) {
            closed.complete(true);
            return;
        }
        transfers.endThoseOf(registration);
        if (transfers.isUnderWay(registration)) {
            if (!limit.isOver()) {
                thread.submit(() -> tryUnregistering(registration, closed, limit));
                return;
            }
            nixl.forget(registration);
            restart("memory is unregistered while a transfer uses it");
        } else {
            nixl.deregister(registration);
        }
        closed.complete(true);
    }

    @Override
    public byte[] metadata() {
        try {
            return thread.call(nixl::metadata);
        } catch (TransferException e) {
            throw new IllegalStateException("agent " + name + " has no metadata: " + e.getMessage(), e);
        }
    }

    @Override
    public Peer connect(byte[] metadata, Duration timeout) throws TransferException {
        return peers.connect(metadata, timeout);
    }

    @Override
    public Transfer start(
            Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        return transfers.start(operation, peer, ranges, notification, timeout);
    }

    @Override
    public void notify(Peer peer, byte[] message) throws TransferException {
        notifications.send(peer, message);
    }

    @Override
    public List<Notification> takeNotifications() {
        return notifications.take();
    }

    @Override
    public void onProgress(Runnable progress) {
        this.progress = progress;
    }

    @Override
    public void close() {
        thread.stop();
        thread.join();
    }

    private void progressed() {
        progress.run();
    }

    /** Whether a transfer with the peer is under way. Peers call this, as they are made before the transfers. */
    private boolean isUnderWay(NixlPeer peer) {
        return transfers.isUnderWay(peer);
    }

    private void begin() throws TransferException {
        try {
            nixl.create();
        } catch (TransferException | RuntimeException e) {
            destroy("its connections could not be made");
            throw e;
        }
    }

    /** Destroys the native agent, after which nothing touches memory for it. */
    private void destroy(String why) {
        scratch.hide();
        transfers.releaseAll();
        peers.endAll(why);
        nixl.destroy();
    }

    private void restart(String why) {
        LOG.warn("NIXL agent {} closes all connections and begins anew: {}", name, why);
        String anew = "connections were made anew: " + why;
        destroy(anew);
        transfers.finishAll(new Transfer.State.Failed(Transfer.Cause.PEER_GONE, anew));
        try {
            begin();
        } catch (TransferException e) {
            LOG.error("NIXL agent {} cannot begin anew and is closed: {}", name, e.getMessage());
            thread.stop();
        }
    }

    /** The work of the owner thread. */
    private final class Work implements NixlThread.Work {
        @Override
        public boolean step() {
            if (!nixl.exists()) {
                return false;
            }
            boolean worked = transfers.step();
            worked |= notifications.receive();
            peers.step();
            return worked;
        }

        @Override
        public boolean isBusy() {
            return !transfers.isEmpty();
        }

        @Override
        public void end() {
            try {
                if (nixl.exists()) {
                    drain();
                }
                destroy("this agent is closed");
            } finally {
                transfers.cancelAll(thread.whyEnded());
                thread.runRemaining();
                scratch.close();
            }
        }

        /**
         * Waits until the requests under way end by themselves, unless a peer does not answer: UCX may fail if its answers find no agent.
         * Peers can see meanwhile that this agent is closed.
         */
        private void drain() {
            scratch.hide();
            transfers.endAll(thread.whyEnded());
            Deadline limit = Deadline.after(ticker, DRAIN);
            boolean busy = true;
            while (busy && !limit.isOver()) {
                boolean _ = transfers.step();
                boolean _ = notifications.receive();
                busy = !transfers.isEmpty();
                busy |= peers.finishProbes();
                Thread.onSpinWait();
            }
        }
    }
}
