package baton.transfer.nixl;

import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.nixl.NixlMetadata.Identity;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * An agent that a {@link NixlAgent} is connected to. Mutable state belongs to that agent's owner thread; other threads read the volatile
 * fields.
 */
final class NixlPeer implements TransferAgent.Peer {
    private final NixlPeers peers;
    private final String name;
    /** Callers that wait for its first answer. */
    final List<CompletableFuture<TransferAgent.Peer>> waiting = new ArrayList<>();
    /** Why it is gone. */
    volatile Optional<String> gone = Optional.empty();
    /** Changes when the peer is connected again with metadata of more registrations. */
    volatile NixlMetadata metadata;
    /** A probe has read its memory. */
    volatile boolean answered;
    /** The request of the probe under way. */
    Optional<MemorySegment> probe = Optional.empty();
    /** Where its probes read to, in the agent's scratch memory. */
    int slot = NixlScratch.NO_SLOT;

    long nextProbe;
    /** Probes that have ended well. */
    long checks;
    /** Whether the peer has unregistered memory since its metadata was made. */
    boolean outdated;

    NixlPeer(NixlPeers peers, NixlMetadata metadata) {
        this.peers = peers;
        this.metadata = metadata;
        name = NixlNativeAgent.firstName(metadata.agent());
    }

    boolean is(NixlMetadata other) {
        return metadata.identity().map(Identity::word).equals(other.identity().map(Identity::word));
    }

    /** Whether it is a peer of the agent that has these. */
    boolean isOf(NixlPeers others) {
        return peers.equals(others);
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public boolean alive() {
        return gone.isEmpty();
    }

    String why() {
        return gone.orElse("peer " + name + " is alive");
    }

    void answered() {
        answered = true;
        waiting.forEach(one -> one.complete(this));
        waiting.clear();
    }

    void end(String why) {
        if (gone.isEmpty()) {
            gone = Optional.of(why);
        }
        waiting.forEach(one -> one.completeExceptionally(new TransferException(why)));
        waiting.clear();
    }

    @Override
    public void close() {
        if (gone.isEmpty()) {
            gone = Optional.of("the connection to " + name + " was closed here");
        }
        peers.close(this);
    }
}
