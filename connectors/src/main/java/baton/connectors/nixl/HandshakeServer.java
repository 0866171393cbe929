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
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Answers handshakes about an instance's ranks over a side channel. For vLLM instances of several versions each version has a port of its
 * own beside: a question does not name the asking instance, but the reference names the port to ask.
 *
 * @param listeners that for all, and one for each of several versions of vLLM
 */
record HandshakeServer(GuardedSideChannel channel, List<SideChannel.Listener> listeners) implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(HandshakeServer.class);
    private static final Duration WARM_UP = Duration.ofSeconds(2);

    /**
     * Begins to answer.
     *
     * @param ticker the clock that stamps the expiry of blocks
     * @param mirror knows the hashes of vLLM instances where the settings do not say which they have
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
            List<SideChannel.Listener> listeners = new ArrayList<>();
            listeners.add(channel.receive(
                    settings.host(),
                    settings.port(),
                    from -> frames -> answer(
                            frames,
                            access,
                            ticker,
                            ranks,
                            info -> mirror.flatMap(all -> all.hash(from))
                                    .or(() -> info.vllmCompatibility().stream().findFirst())
                                    .orElse(info.compatibility()))));
            int versions = settings.vllmVersions().size();
            for (int i = 0; versions > 1 && i < versions; i++) {
                int version = i;
                listeners.add(channel.listen(
                        settings.host(),
                        settings.port() == 0 ? 0 : settings.port() + 1 + i,
                        frames -> answer(
                                frames,
                                access,
                                ticker,
                                ranks,
                                info -> info.vllmCompatibility().get(version))));
            }
            return new HandshakeServer(channel, List.copyOf(listeners));
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
            Function<RankInfo, String> hash) {
        Rank rank;
        try {
            rank = NixlHandshake.readQuestion(frames.getFirst());
        } catch (InvalidFieldException e) {
            access.refuse("side channel: a peer", "its question is not a handshake's: " + e.getMessage());
            return List.of();
        }
        return Optional.ofNullable(ranks.get(rank))
                .map(info -> List.of(
                        NixlHandshake.encode(info, hash.apply(info), access.secret()),
                        NixlHandshake.clock(ticker.nanos() / 1e9)))
                .orElse(List.of());
    }

    int port() {
        return listeners.getFirst().port();
    }

    /** The port for vLLM instances of one version; that for all if the settings do not name the version beside others. */
    int port(String version, NixlSettings settings) {
        return listeners.size() == 1
                ? port()
                : listeners.get(1 + settings.vllmVersions().indexOf(version)).port();
    }

    /**
     * Makes a handshake with itself and connects to the first rank's agent, as a peer does first: loading classes and security providers
     * takes most of the time of a first handshake. Failures are ignored.
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
            RemoteBlocks reference = new RemoteBlocks(
                    "", "", "", 0, 1, new int[0], List.of(0), 0, 0, TransferMode.PULL, Optional.empty());
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
