package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.kv.connector.Rank;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.stream.IntStream;

/**
 * A peer instance as one rank of ours sees it: the handshake with those of its ranks that hold our heads, and then the
 * connections. The rank's thread owns it; only the handshake runs elsewhere, and what it brings is taken in by {@link #poll}.
 */
final class PeerEngine {
    /** A connected rank of the peer, and where its seals are read to. */
    static final class RemoteRank {
        private final RankInfo info;
        private final Peer peer;
        private Optional<Scratch> scratch = Optional.empty();

        RemoteRank(RankInfo info, Peer peer) {
            this.info = info;
            this.peer = peer;
        }

        RankInfo info() {
            return info;
        }

        Peer peer() {
            return peer;
        }

        /** Provides for {@link #scratch}: {@code slots} entries of the peer's table of seals. */
        void needScratch(ConnectorRuntime runtime, TransferAgent agent, int slots) throws TransferException {
            if (scratch.isEmpty()) {
                ConnectorRuntime.Memory memory =
                        runtime.allocate(slots * BlockChecksums.entryBytes(info.layout()), "kv seals");
                try {
                    scratch = Optional.of(
                            new Scratch(memory, agent.register(memory.region().withPermitsOnly())));
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

    private final NixlSettings.Address address;
    private final long started;
    private final long deadline;
    private final CompletableFuture<List<RemoteRank>> handshake = new CompletableFuture<>();
    /** Of a handshake that failed: who was met before it did. Written before it is over. */
    private volatile List<RemoteRank> metBeforeFailure = List.of();

    private List<RemoteRank> ranks = List.of();
    private Optional<String> failure = Optional.empty();
    private int users;
    private long lastUsed;

    private PeerEngine(NixlSettings.Address address, long now, Duration timeout) {
        this.address = address;
        this.started = now;
        this.lastUsed = now;
        this.deadline = now + timeout.toNanos();
    }

    /**
     * Begins a handshake.
     *
     * @param self what peers know of our rank
     * @param tensorParallelSize of the peer; empty takes its word
     */
    static PeerEngine meet(
            NixlSettings.Address address,
            Optional<Integer> tensorParallelSize,
            RankInfo self,
            NixlSettings settings,
            PeerHandshake handshake,
            ConnectorRuntime runtime,
            TransferAgent agent,
            long now,
            Runnable over) {
        PeerEngine engine = new PeerEngine(address, now, settings.handshakeTimeout());
        runtime.background().execute(() -> {
            List<RemoteRank> met = new ArrayList<>();
            try {
                if (!settings.access().mayConnect(address.host())) {
                    throw new TransferException(
                            address + " is " + settings.access().notAllowed());
                }
                Duration timeout = settings.handshakeTimeout();
                int stage = self.rank().pipeline();
                int size = tensorParallelSize.isPresent()
                        ? tensorParallelSize.get()
                        : handshake.ask(address, new Rank(stage, 0), timeout).tensorParallelSize();
                for (int tensor : sources(self.rank().tensor(), self.tensorParallelSize(), size)) {
                    RankInfo info = handshake.ask(address, new Rank(stage, tensor), timeout);
                    check(info, self, settings.enforceCompatibility());
                    met.add(new RemoteRank(info, agent.connect(info.agent(), timeout)));
                }
                engine.handshake.complete(List.copyOf(met));
            } catch (TransferException | RuntimeException | Error e) {
                // Not closed here: others may use the same connections.
                engine.metBeforeFailure = List.copyOf(met);
                engine.handshake.completeExceptionally(e);
            }
            over.run();
        });
        return engine;
    }

    /**
     * The peer's ranks that hold the heads of one of ours.
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
        throw new TransferException("its tensor parallel size " + peerSize + " does not divide ours, " + ownSize
                + ", nor the other way round");
    }

    private static void check(RankInfo info, RankInfo self, boolean enforce) throws TransferException {
        if (enforce && !info.compatibility().equals(self.compatibility())) {
            throw new TransferException(
                    "NIXL compatibility hash mismatch: its is " + info.compatibility() + ", ours "
                            + self.compatibility()
                            + "; model, dtype, layers, heads and connector must be the same. enforce_handshake_compat=false goes on all the same");
        }
        if (info.pipelineParallelSize() != self.pipelineParallelSize()) {
            throw new TransferException("its pipeline parallel size is " + info.pipelineParallelSize() + ", ours "
                    + self.pipelineParallelSize() + "; they must be equal");
        }
        if (info.layout().layers() != self.layout().layers()
                || info.layout().headDim() != self.layout().headDim()
                || info.layout().dtype() != self.layout().dtype()
                || info.modelKvHeads() != self.modelKvHeads()) {
            throw new TransferException(
                    "its KV layout does not fit: " + info.layout().describe() + " of "
                            + info.modelKvHeads() + " heads in all, ours "
                            + self.layout().describe() + " of "
                            + self.modelKvHeads());
        }
        if (info.life().isPresent() && info.seals().isEmpty()) {
            throw new TransferException("it signs references but has no seals");
        }
    }

    /** Takes in what has become of the handshake. */
    void poll(long now) {
        if (isPending()) {
            if (handshake.isDone()) {
                try {
                    ranks = handshake.join();
                } catch (CompletionException e) {
                    failure = Optional.of(String.valueOf(
                            Optional.ofNullable(e.getCause()).orElse(e).getMessage()));
                }
            } else if (now - deadline >= 0) {
                failure = Optional.of("no answer from " + address + " in time");
            }
        }
    }

    boolean isPending() {
        return failure.isEmpty() && ranks.isEmpty();
    }

    /** Over without success, and nothing of it runs any more. */
    boolean isAbandoned() {
        return failure.isPresent() && !handshake.isDone();
    }

    Optional<String> failure() {
        return failure;
    }

    NixlSettings.Address address() {
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
        return !ranks.isEmpty() && ranks.stream().allMatch(rank -> rank.peer().alive());
    }

    /** True if this is the instance, in the life, that the reference is of. */
    boolean isOwnerOf(RemoteBlocks reference) {
        return ranks.stream()
                .allMatch(rank -> rank.info().engineId().equals(reference.engineId())
                        && reference.tensorParallelSize() == rank.info().tensorParallelSize()
                        && reference
                                .proof()
                                .flatMap(proof -> rank.info()
                                        .life()
                                        .map(life -> life.epoch().equals(proof.epoch())))
                                .orElse(true));
    }

    /** True if the reference is as its owner made it; of owners that do not sign references, that it does not claim to be signed. */
    boolean hasSigned(RemoteBlocks reference) {
        return ranks.stream()
                .allMatch(rank -> rank.info()
                        .life()
                        .map(life -> reference.isSignedWith(life.key()))
                        .orElse(reference.proof().isEmpty()));
    }

    /** True if it knows what we say beyond vLLM's messages. */
    boolean isOneOfOurs() {
        return ranks.stream().allMatch(rank -> rank.info().life().isPresent());
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

    private List<RemoteRank> met() {
        if (failure.isPresent() && handshake.isDone()) {
            return handshake.isCompletedExceptionally() ? metBeforeFailure : handshake.join();
        }
        return ranks;
    }

    /** True if {@link #close} closes peers. */
    boolean hasMet() {
        return !met().isEmpty();
    }

    /** @param keep peers that others use too */
    void close(List<Peer> keep) {
        for (RemoteRank rank : met()) {
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
