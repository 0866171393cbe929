package baton.transfer.nixl;

import baton.kv.Ticker;
import baton.transfer.Range;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import baton.transfer.nixl.NixlApi.Status;
import baton.transfer.nixl.NixlMetadata.Identity;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/**
 * The peers of a {@link NixlAgent}, from their connecting to their end: it connects them, probes them, and forgets those that are gone
 * when NIXL has nothing under way to them. Belongs to the owner thread.
 */
final class NixlPeers {
    private static final long PROBE_NANOS = TimeUnit.MILLISECONDS.toNanos(NixlAgent.PROBE_MILLIS);

    private final NixlApi api;
    private final String name;
    private final Ticker ticker;
    private final NixlThread thread;
    private final NixlScratch scratch;
    private final NixlNativeAgent nixl;
    private final Predicate<NixlPeer> busy;

    /** The peers by the names of their native agents. */
    private final Map<String, NixlPeer> peers = new HashMap<>();
    /** Peers that are gone but not yet removed from NIXL. */
    private final List<NixlPeer> leaving = new ArrayList<>();

    /**
     * @param name of the agent
     * @param busy tells if NIXL has requests of transfers with a peer under way
     */
    NixlPeers(
            NixlApi api,
            String name,
            Ticker ticker,
            NixlThread thread,
            NixlScratch scratch,
            NixlNativeAgent nixl,
            Predicate<NixlPeer> busy) {
        this.api = api;
        this.name = name;
        this.ticker = ticker;
        this.thread = thread;
        this.scratch = scratch;
        this.nixl = nixl;
        this.busy = busy;
    }

    /** Called by any thread, as {@link NixlAgent#connect}. */
    Peer connect(byte[] metadata, Duration timeout) throws TransferException {
        NixlMetadata parsed = NixlMetadata.parse(metadata);
        CompletableFuture<Peer> answered = new CompletableFuture<>();
        thread.submit(() -> tryConnecting(parsed, answered));
        try {
            return NixlThread.await(answered, timeout, "peer " + parsed.agent() + " did not answer within ");
        } catch (TransferException e) {
            thread.submit(() -> Optional.ofNullable(peers.get(parsed.agent()))
                    .filter(peer -> !peer.answered)
                    .ifPresent(peer -> gone(peer, "did not answer when it was connected")));
            answered.completeExceptionally(e);
            throw e;
        }
    }

    /** Called by any thread, as {@link Peer#close}. */
    void close(NixlPeer peer) {
        thread.submit(() -> gone(peer, "was closed here"));
    }

    /** Advances probes, and the ends of peers, as far as possible without waiting. */
    void step() {
        thread.check();
        for (NixlPeer peer : List.copyOf(peers.values())) {
            probe(peer);
        }
        for (NixlPeer peer : List.copyOf(leaving)) {
            leave(peer);
        }
    }

    /**
     * Takes the probes under way as far as they get without waiting, and begins no others.
     *
     * @return whether any is under way still
     */
    boolean finishProbes() {
        thread.check();
        boolean probing = false;
        for (NixlPeer peer : List.copyOf(peers.values())) {
            if (peer.probe.isPresent()) {
                probe(peer);
                probing |= peer.probe.isPresent();
            }
        }
        return probing;
    }

    /** All peers are gone as the native agent is about to be destroyed. */
    void endAll(String why) {
        thread.check();
        List<NixlPeer> all = new ArrayList<>(peers.values());
        all.addAll(leaving);
        for (NixlPeer peer : all) {
            peer.probe.ifPresent(request -> api.release(nixl.handle(), request));
            peer.probe = Optional.empty();
            peer.end(why);
        }
        peers.clear();
        leaving.clear();
    }

    private void tryConnecting(NixlMetadata metadata, CompletableFuture<Peer> answered) {
        thread.check();
        if (leaving.stream().anyMatch(peer -> peer.metadata.agent().equals(metadata.agent()))) {
            // Requests under way over an earlier connection have to end first; the caller decides how long it waits.
            if (!answered.isDone()) {
                thread.submit(() -> tryConnecting(metadata, answered));
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
        if (thread.hasEnded()) {
            throw new TransferException(thread.whyEnded());
        }
        String firstName = NixlNativeAgent.firstName(metadata.agent());
        if (firstName.equals(name)) {
            throw new TransferException("agent " + name + " cannot connect to itself");
        }
        Optional<NixlPeer> known = Optional.ofNullable(peers.get(metadata.agent()));
        if (known.isPresent() && !known.get().is(metadata)) {
            throw new TransferException("this is not the agent " + metadata.agent() + " that is connected");
        }
        // The same agent may have been made anew, its earlier life is over then.
        for (NixlPeer earlier : List.copyOf(peers.values())) {
            if (earlier.name().equals(firstName) && !earlier.metadata.agent().equals(metadata.agent())) {
                gone(earlier, "made its connections anew");
            }
        }
        String loaded = api.loadRemoteMetadata(nixl.handle(), metadata.blob());
        if (!loaded.equals(metadata.agent())) {
            Status _ = api.invalidateRemote(nixl.handle(), loaded);
            throw new TransferException("NIXL reads the name " + loaded + ", expected " + metadata.agent());
        }
        NixlPeer peer = known.orElseGet(() -> new NixlPeer(this, metadata));
        peer.metadata = metadata;
        peers.put(metadata.agent(), peer);
        Status connected = api.connect(nixl.handle(), metadata.agent());
        if (connected.failed()) {
            gone(peer, "NIXL does not connect to it: " + connected);
            throw new TransferException(peer.why());
        }
        peer.waiting.add(answered);
        probeNow(peer);
    }

    /** Sends a notification, unless the peer is gone. */
    void send(NixlPeer peer, byte[] message) {
        thread.check();
        if (peers.get(peer.metadata.agent()) == peer
                && api.notify(nixl.handle(), peer.metadata.agent(), message).failed()) {
            probeNow(peer);
        }
    }

    /** Looks after a peer's probe, of which it is time now if none is under way. */
    void probeNow(NixlPeer peer) {
        peer.nextProbe = ticker.nanos();
        probe(peer);
    }

    /** Looks after a peer's probe: posts one if it is time, and draws conclusions from one that is over. */
    private void probe(NixlPeer peer) {
        thread.check();
        if (peer.probe.isEmpty()) {
            if (peer.nextProbe - ticker.nanos() > 0 || peers.get(peer.metadata.agent()) != peer) {
                return;
            }
            Optional<Range> target = probeTarget(peer);
            if (target.isEmpty()) {
                // A peer without memory of its own cannot be probed.
                peer.nextProbe = ticker.nanos() + PROBE_NANOS;
                peer.checks++;
                peer.answered();
                return;
            }
            try {
                MemorySegment request = api.createRequest(
                        nixl.handle(),
                        Operation.READ,
                        List.of(target.get()),
                        NixlTransfer.Kinds.DRAM,
                        peer.metadata.agent());
                peer.probe = Optional.of(request);
                conclude(peer, request, api.post(nixl.handle(), request));
            } catch (TransferException e) {
                gone(peer, "NIXL knows it no more");
            }
        } else {
            MemorySegment request = peer.probe.get();
            conclude(peer, request, api.status(nixl.handle(), request));
        }
    }

    private Optional<Range> probeTarget(NixlPeer peer) {
        if (peer.slot == NixlScratch.NO_SLOT) {
            peer.slot = scratch.takeSlot();
        }
        if (peer.slot == NixlScratch.NO_SLOT) {
            return Optional.empty();
        }
        long local = scratch.address(peer.slot);
        return peer.metadata
                .identity()
                .map(word -> new Range(local, word.address(), NixlScratch.PROBE_BYTES))
                .or(() -> peer.metadata.memory().stream()
                        .filter(memory -> memory.kind().equals(NixlMemory.Kind.DRAM))
                        .findFirst()
                        .map(memory -> new Range(local, memory.address(), 1)));
    }

    private void conclude(NixlPeer peer, MemorySegment request, Status status) {
        if (status == Status.IN_PROGRESS) {
            return;
        }
        api.release(nixl.handle(), request);
        peer.probe = Optional.empty();
        peer.nextProbe = ticker.nanos() + PROBE_NANOS;
        long word = scratch.word(peer.slot);
        long revision = scratch.revision(peer.slot);
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
    private void gone(NixlPeer peer, String why) {
        thread.check();
        peer.end("peer " + peer.name() + " " + why);
        if (peers.remove(peer.metadata.agent(), peer)) {
            leaving.add(peer);
            leave(peer);
        }
    }

    /** Forgets a peer that is gone as soon as NIXL has nothing under way to it. */
    private void leave(NixlPeer peer) {
        thread.check();
        peer.probe.ifPresent(request -> {
            if (api.status(nixl.handle(), request) != Status.IN_PROGRESS) {
                api.release(nixl.handle(), request);
                peer.probe = Optional.empty();
            }
        });
        if (peer.probe.isEmpty() && !busy.test(peer)) {
            Status _ = api.invalidateRemote(nixl.handle(), peer.metadata.agent());
            if (peer.slot != NixlScratch.NO_SLOT) {
                scratch.giveSlot(peer.slot);
                peer.slot = NixlScratch.NO_SLOT;
            }
            leaving.remove(peer);
        }
    }
}
