package baton.connectors.onesided;

import baton.connectors.ConnectorRuntime;
import baton.kv.KvDigest;
import baton.kv.connector.Rank;
import baton.messages.PeerAddress;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A peer instance as seen from one rank of this one: the handshake with those of its ranks that hold the same heads, and then the
 * connections. The rank's thread owns it; only the handshake runs elsewhere, and its result is taken in by {@link #poll}.
 */
public final class PeerEngine {
    /** A connected rank of the peer, and the memory into which its checksums are read. */
    static final class RemoteRank {
        private final RankInfo info;
        private final OptionalDouble clockOffset;
        private final Peer peer;
        private Optional<Scratch> scratch = Optional.empty();

        RemoteRank(PeerHandshake.Answer answer, Peer peer) {
            this.info = answer.info();
            this.clockOffset = answer.clockOffset();
            this.peer = peer;
        }

        RankInfo info() {
            return info;
        }

        Peer peer() {
            return peer;
        }

        /** Provides {@link #scratch}: memory for {@code entries} entries of the peer's table of checksums. */
        void needScratch(RankContext context, int entries) throws TransferException {
            if (scratch.isEmpty()) {
                ConnectorRuntime.Memory memory = context.runtime()
                        .allocate(entries * BlockChecksums.entryBytes(info.layout(), info.digest()), PURPOSE);
                try {
                    scratch = Optional.of(new Scratch(
                            memory, context.agent().register(memory.region().withPermitsOnly())));
                } catch (TransferException | RuntimeException e) {
                    memory.close();
                    throw e;
                }
            }
        }

        Scratch scratch() {
            return scratch.orElseThrow();
        }
    }

    record Scratch(ConnectorRuntime.Memory memory, TransferAgent.Registration registration) {}

    private static final Logger log = LoggerFactory.getLogger(PeerEngine.class);

    private static final String PURPOSE = "block checksums of a peer";

    private final PeerAddress address;
    private final long started;
    private final long deadline;
    private final CompletableFuture<List<RemoteRank>> handshake = new CompletableFuture<>();
    /** Ranks that a failed handshake had connected before it failed. Written before it is over. */
    private volatile List<RemoteRank> connectedBeforeFailure = List.of();

    private List<RemoteRank> ranks = List.of();
    private Optional<String> failure = Optional.empty();
    private long failed;
    private int users;
    private long lastUsed;
    /** {@link RemoteBlocks#registrations} at the handshake, or earlier. */
    private long registrations;
    /** The peer has registered its memory anew since the handshake. */
    private boolean isOutdated;

    private PeerEngine(PeerAddress address, long now, Duration timeout) {
        this.address = address;
        this.started = now;
        this.lastUsed = now;
        this.deadline = now + timeout.toNanos();
    }

    /**
     * Begins a handshake.
     *
     * @param tensorParallelSize of the peer; if empty, the peer is asked
     */
    static PeerEngine connect(
            PeerAddress address, Optional<Integer> tensorParallelSize, RankContext context, long now) {
        PeerEngine engine = new PeerEngine(address, now, context.settings().handshakeTimeout());
        context.runtime().background().execute(() -> {
            List<RemoteRank> connected = new ArrayList<>();
            try {
                engine.connect(tensorParallelSize, context, connected);
                engine.handshake.complete(List.copyOf(connected));
            } catch (TransferException | RuntimeException | Error e) {
                // Not closed here: another handshake may have the same connections.
                engine.connectedBeforeFailure = List.copyOf(connected);
                engine.handshake.completeExceptionally(e);
            }
            context.wake().run();
        });
        return engine;
    }

    private void connect(Optional<Integer> tensorParallelSize, RankContext context, List<RemoteRank> connected)
            throws TransferException {
        OneSidedSettings settings = context.settings();
        if (!settings.access().mayConnect(address.host())) {
            throw new TransferException(address + " is " + settings.access().notAllowed());
        }
        RankInfo self = context.self();
        Duration timeout = settings.handshakeTimeout();
        int stage = self.rank().pipeline();
        int size;
        if (tensorParallelSize.isPresent() && tensorParallelSize.get() == 1 && stage == 0) {
            size = 1;
        } else {
            // A rank that every instance has: vLLM's side channel ends for good when it is asked for one that does not
            // exist.
            RankInfo first =
                    context.handshake().ask(address, Rank.FIRST, timeout).info();
            size = tensorParallelSize.orElse(first.tensorParallelSize());
            checkSizes(first, size);
            check(first, self, isEnforced(first, settings), context.stats().label());
        }
        for (int tensor : sources(self.rank().tensor(), self.tensorParallelSize(), size)) {
            PeerHandshake.Answer answer = context.handshake().ask(address, new Rank(stage, tensor), timeout);
            RankInfo info = answer.info();
            checkSizes(info, size);
            check(info, self, isEnforced(info, settings), context.stats().label());
            connected.add(new RemoteRank(answer, context.agent().connect(info.agent(), timeout)));
            if (info.digest() != connected.getFirst().info().digest()) {
                throw new TransferException("its ranks have digests of different kinds");
            }
            if (info.incarnation().isEmpty()) {
                log.info(
                        "engine {} at {} is a vLLM instance (tensor parallel size {}, blocks of {} tokens, {}): its blocks have no"
                                + " checksums and are used unverified",
                        info.engineId(),
                        address,
                        size,
                        info.layout().blockSize(),
                        info.interior());
            }
        }
    }

    /**
     * The peer's ranks that hold the heads of one of this instance's ranks.
     *
     * @throws TransferException if neither size divides the other
     */
    static int[] sources(int tensor, int ownSize, int peerSize) throws TransferException {
        if (peerSize % ownSize == 0) {
            int each = peerSize / ownSize;
            return IntStream.range(tensor * each, (tensor + 1) * each).toArray();
        }
        if (ownSize % peerSize == 0) {
            return new int[] {tensor / (ownSize / peerSize)};
        }
        throw new TransferException("its tensor parallel size " + peerSize + " does not divide that of this instance, "
                + ownSize + ", nor the other way round");
    }

    /** A reference's size may be anything, as clients send it. */
    private static void checkSizes(RankInfo info, int size) throws TransferException {
        if (info.incarnation().isEmpty() && info.tensorParallelSize() != size) {
            throw new TransferException(
                    "tp_size is said to be " + size + ", its blocks are of size " + info.tensorParallelSize()
                            + "; of a vLLM instance with more ranks than key/value heads, vllm_tp_size must say how many");
        }
    }

    /** Whether its hash must be one that this instance knows. */
    private boolean isEnforced(RankInfo info, OneSidedSettings settings) {
        boolean mirrored = info.incarnation().isEmpty() && settings.mirrored().contains(address);
        return settings.enforceCompatibility() && !mirrored;
    }

    static void check(RankInfo info, RankInfo self, boolean enforce, String label) throws TransferException {
        if (info.layout().dtype() != self.layout().dtype()) {
            throw new TransferException("its KV cache is of "
                    + info.layout().dtype().torchName() + ", that of this instance of "
                    + self.layout().dtype().torchName()
                    + "; --dtype and --kv-cache-dtype of both must be the same");
        }
        if (enforce
                && !info.compatibility().equals(self.compatibility())
                && !self.vllmCompatibility().contains(info.compatibility())) {
            throw new TransferException(
                    label + " compatibility hash mismatch: its is " + info.compatibility() + ", that of this instance "
                            + self.compatibility()
                            + (self.vllmCompatibility().isEmpty()
                                    ? ", and vllm_compat is not set"
                                    : ", and for vLLM " + String.join(" or ", self.vllmCompatibility()))
                            + "; model, dtype, layers, heads and connector must be the same. enforce_handshake_compat=false goes on all the same");
        }
        if (info.pipelineParallelSize() != self.pipelineParallelSize()) {
            throw new TransferException("its pipeline parallel size is " + info.pipelineParallelSize()
                    + ", this instance's " + self.pipelineParallelSize() + "; they must be equal");
        }
        if (info.layout().layers() != self.layout().layers()
                || info.layout().headDim() != self.layout().headDim()
                || info.layout().latent() != self.layout().latent()
                || info.modelKvHeads() != self.modelKvHeads()) {
            throw new TransferException(
                    "its KV layout does not fit: " + info.layout().describe() + " of "
                            + info.modelKvHeads() + " heads in all, this instance's "
                            + self.layout().describe() + " of "
                            + self.modelKvHeads());
        }
        if (info.incarnation().isEmpty()
                && !info.layerNames().isEmpty()
                && !info.layerNames().equals(self.layerNames())) {
            throw new TransferException("its region_names are " + info.layerNames() + ", must be " + self.layerNames());
        }
        if (info.incarnation().isPresent() && info.checksums().isEmpty()) {
            throw new TransferException("it signs references but has no checksums of blocks");
        }
    }

    /** Takes in the result of the handshake. */
    void poll(long now) {
        if (isPending()) {
            if (handshake.isDone()) {
                try {
                    ranks = handshake.join();
                } catch (CompletionException e) {
                    failure = Optional.of(String.valueOf(
                            Optional.ofNullable(e.getCause()).orElse(e).getMessage()));
                    failed = now;
                }
            } else if (now - deadline >= 0) {
                failure = Optional.of("no answer from " + address + " in time");
                failed = now;
            }
        }
    }

    boolean isPending() {
        return failure.isEmpty() && ranks.isEmpty();
    }

    /** Given up, while its handshake still runs. */
    boolean isAbandoned() {
        return failure.isPresent() && !handshake.isDone();
    }

    Optional<String> failure() {
        return failure;
    }

    /** Whether its handshake has failed, at that time or later. */
    boolean hasFailedSince(long since) {
        return failure.isPresent() && failed - since >= 0;
    }

    /** Whether its handshake has failed, before that time. */
    boolean hasFailedBefore(long then) {
        return failure.isPresent() && failed - then < 0;
    }

    PeerAddress address() {
        return address;
    }

    /** When the handshake began. */
    long started() {
        return started;
    }

    List<RemoteRank> ranks() {
        return ranks;
    }

    boolean isConnected() {
        return !isOutdated
                && !ranks.isEmpty()
                && ranks.stream().allMatch(rank -> rank.peer().alive());
    }

    /** The handshake began after its owner had made the reference. */
    void registered(RemoteBlocks reference) {
        registrations = Math.max(registrations, reference.registrations());
    }

    /**
     * Closes the connections to a vLLM instance that has registered its memory anew since the handshake, as after its sleep: addresses and keys of its memory
     * are others. The next handshake may have the same agent, which is then connected anew.
     */
    void disconnectIfRegisteredBefore(RemoteBlocks reference) {
        if (isConnected() && !isBaton() && isOwnerOf(reference) && reference.registrations() > registrations) {
            isOutdated = true;
            ranks.forEach(rank -> rank.peer().close());
        }
    }

    /** True if this is the instance, and the incarnation, that the reference is of. */
    boolean isOwnerOf(RemoteBlocks reference) {
        return ranks.stream()
                .allMatch(rank -> rank.info().engineId().equals(reference.engineId())
                        && reference.tensorParallelSize() == rank.info().tensorParallelSize()
                        && reference
                                .proof()
                                .flatMap(proof -> rank.info()
                                        .incarnation()
                                        .map(run -> run.epoch().equals(proof.epoch())))
                                .orElse(true));
    }

    /** True if the reference is as its owner made it; if the owner does not sign references, that it claims no signature. */
    boolean hasSigned(RemoteBlocks reference) {
        return ranks.stream()
                .allMatch(rank -> rank.info()
                        .incarnation()
                        .map(run -> reference.isSignedWith(run.key()))
                        .orElse(reference.proof().isEmpty()));
    }

    /** Whether blocks that a reference names are checked when they have come: a push that nothing was promised of is. */
    boolean hasPromised(RemoteBlocks reference) {
        return (reference.mode() == TransferMode.PUSH && reference.proof().isEmpty()) || hasSigned(reference);
    }

    /**
     * Whether less than {@code margin} is left of a lease. False if the peer's clock is not known.
     *
     * @param expiry by the peer's clock, in seconds
     * @param now by this instance's clock, in nanoseconds
     */
    boolean isExpiring(double expiry, Duration margin, long now) {
        return ranks.stream()
                .anyMatch(rank -> rank.clockOffset.isPresent()
                        && expiry - (now / 1e9 + rank.clockOffset.getAsDouble()) < margin.toSeconds());
    }

    /** True if it is a Baton instance, which has messages beyond vLLM's. */
    boolean isBaton() {
        return ranks.stream().allMatch(rank -> rank.info().incarnation().isPresent());
    }

    /** The kind of digest that its blocks have. */
    KvDigest digest() {
        return ranks.getFirst().info().digest();
    }

    Optional<RemoteRank> rankOf(String agent) {
        return ranks.stream().filter(rank -> rank.peer().name().equals(agent)).findFirst();
    }

    void use(long now) {
        users++;
        lastUsed = now;
    }

    void release(long now) {
        users--;
        lastUsed = now;
    }

    boolean isUsed() {
        return users > 0;
    }

    long lastUsed() {
        return lastUsed;
    }

    private List<RemoteRank> connected() {
        if (failure.isPresent() && handshake.isDone()) {
            return handshake.isCompletedExceptionally() ? connectedBeforeFailure : handshake.join();
        }
        return ranks;
    }

    /** True if {@link #close} closes peers. */
    boolean hasConnected() {
        return !connected().isEmpty();
    }

    /** @param keep connections that are used by another handshake too */
    void close(List<Peer> keep) {
        for (RemoteRank rank : connected()) {
            if (!keep.contains(rank.peer())) {
                rank.peer().close();
            }
            rank.scratch.ifPresent(scratch -> {
                scratch.registration().close();
                scratch.memory().close();
            });
            rank.scratch = Optional.empty();
        }
    }
}
