package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.onesided.RankInfo;
import baton.connectors.onesided.RemoteBlocks;
import baton.connectors.onesided.TransferMode;
import baton.kv.InvalidFieldException;
import baton.kv.Ticker;
import baton.kv.connector.Rank;
import baton.messages.GuardedSideChannel;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.SideChannel;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Answers handshakes about an instance's ranks over a side channel. */
final class HandshakeServer implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(HandshakeServer.class);
    private static final Duration WARM_UP = Duration.ofSeconds(2);

    private final GuardedSideChannel channel;
    private final SideChannel.Listener listener;

    private HandshakeServer(GuardedSideChannel channel, SideChannel.Listener listener) {
        this.channel = channel;
        this.listener = listener;
    }

    /**
     * Begins to answer.
     *
     * @param ticker the clock that stamps the expiry of blocks
     * @param mirror knows the hashes of vLLM instances where the settings do not say what they have
     * @throws MessageException if it cannot listen at the settings' address
     */
    static HandshakeServer listen(
            ConnectorRuntime runtime,
            NixlSettings settings,
            Ticker ticker,
            Map<Rank, RankInfo> ranks,
            Optional<VllmMirror> mirror)
            throws MessageException {
        PeerAccess access = settings.access();
        GuardedSideChannel channel = runtime.sideChannel(access);
        try {
            return new HandshakeServer(
                    channel,
                    channel.receive(
                            settings.host(),
                            settings.port(),
                            from -> frames -> answer(
                                    frames, access, ticker, ranks, () -> mirror.flatMap(all -> all.hash(from)))));
        } catch (MessageException | RuntimeException e) {
            channel.close();
            throw e;
        }
    }

    /** No answer to an invalid question, or to one about a rank that does not exist. */
    private static List<byte[]> answer(
            List<byte[]> frames,
            PeerAccess access,
            Ticker ticker,
            Map<Rank, RankInfo> ranks,
            Supplier<Optional<String>> mirrored) {
        Rank rank;
        try {
            rank = NixlHandshake.readQuestion(frames.getFirst());
        } catch (InvalidFieldException e) {
            access.refuse("side channel: a peer", "its question is not a handshake's: " + e.getMessage());
            return List.of();
        }
        return Optional.ofNullable(ranks.get(rank))
                .map(info -> List.of(
                        NixlHandshake.encode(
                                info,
                                info.vllmCompatibility().or(mirrored).orElse(info.compatibility()),
                                access.secret()),
                        NixlHandshake.clock(ticker.nanos() / 1e9)))
                .orElse(List.of());
    }

    int port() {
        return listener.port();
    }

    /**
     * Makes a handshake with itself and connects to the first rank's agent, as a peer does first: loading classes and security
     * providers is most of what a first handshake takes. Failures are ignored.
     */
    void warmUp(ConnectorRuntime runtime, NixlSettings settings, VllmRank vllm) {
        Optional<TransferAgent> agent = runtime.warmUpAgent(settings.host(), settings.access());
        if (agent.isEmpty()) {
            return;
        }
        try (TransferAgent peer = agent.get()) {
            RankInfo info = new HandshakeClient(runtime, settings.access(), vllm)
                    .ask(new PeerAddress(settings.host(), port()), Rank.FIRST, WARM_UP)
                    .info();
            byte[] key = info.incarnation().orElseThrow().key();
            RemoteBlocks reference =
                    new RemoteBlocks("", "", "", 0, 1, new int[0], List.of(0), 0, TransferMode.PULL, Optional.empty());
            if (!reference.proven("", "", new long[0], "", key).isSignedWith(key)) {
                throw new IllegalStateException("a signature does not verify with the key that made it");
            }
            // An agent of another kind refuses the metadata.
            peer.connect(info.agent(), WARM_UP);
        } catch (TransferException e) {
            log.debug("The warm-up's handshake failed: {}", e.getMessage());
        }
    }

    @Override
    public void close() {
        channel.close();
    }
}
