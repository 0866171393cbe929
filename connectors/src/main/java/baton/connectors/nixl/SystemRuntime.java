package baton.connectors.nixl;

import baton.kv.ConfigException;
import baton.kv.connector.Rank;
import baton.messages.GuardedSideChannel;
import baton.messages.MessageException;
import baton.messages.SideChannel;
import baton.messages.zeromq.ZeroMqSideChannel;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import baton.transfer.select.TransferAgents;
import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The machine's: mappable memory, the agent that the settings ask for, vLLM's side channel over ZeroMQ, virtual threads. */
final class SystemRuntime implements ConnectorRuntime {
    private static final Logger log = LoggerFactory.getLogger(SystemRuntime.class);
    private static final Duration WARM_UP = Duration.ofSeconds(2);

    @Override
    public TransferAgent agent(NixlSettings settings) {
        try {
            return TransferAgents.open("baton", settings.agent(), embedded(settings));
        } catch (TransferException e) {
            throw new ConfigException("kv_connector", "no transfer agent: " + e.getMessage(), e);
        }
    }

    private static EmbeddedAgent.Settings embedded(NixlSettings settings) {
        return EmbeddedAgent.Settings.at(settings.host()).withAccess(settings.access());
    }

    @Override
    public Memory allocate(long bytes) {
        Arena arena = Arena.ofShared();
        try {
            Region region = Region.allocate(arena, bytes, "kv seals");
            return new Memory() {
                @Override
                public Region region() {
                    return region;
                }

                @Override
                public void close() {
                    arena.close();
                }
            };
        } catch (RuntimeException e) {
            arena.close();
            throw e;
        }
    }

    @Override
    public SideServer serve(NixlSettings settings, Map<Rank, RankInfo> ranks) throws TransferException {
        GuardedSideChannel channel = new GuardedSideChannel(new ZeroMqSideChannel(), settings.access());
        try {
            SideChannel.Listener listener =
                    channel.listen(settings.host(), settings.port(), frames -> answer(settings, frames, ranks));
            return new SideServer() {
                @Override
                public int port() {
                    return listener.port();
                }

                @Override
                public void close() {
                    channel.close();
                }
            };
        } catch (MessageException e) {
            channel.close();
            throw new TransferException(String.valueOf(e.getMessage()), e);
        }
    }

    /** No answer to what is no question, or about a rank that there is not. */
    private static List<byte[]> answer(NixlSettings settings, List<byte[]> frames, Map<Rank, RankInfo> ranks) {
        Rank asked;
        try {
            asked = Handshake.readQuestion(frames.getFirst());
        } catch (ConfigException e) {
            settings.access().refuse("side channel: a peer", "it asks what is no question: " + e.getMessage());
            return List.of();
        }
        return Optional.ofNullable(ranks.get(asked))
                .map(info ->
                        List.of(info.toPayload(settings.access().secret()), Handshake.clock(System.nanoTime() / 1e9)))
                .orElse(List.of());
    }

    @Override
    public void warmUp(NixlSettings settings, NixlSettings.Address self) {
        try {
            RankInfo info = ask(settings, self, Rank.FIRST, WARM_UP);
            byte[] key = info.life().orElseThrow().key();
            RemoteBlocks reference =
                    new RemoteBlocks("", "", "", 0, 1, new int[0], 0, TransferMode.PULL, Optional.empty());
            if (!reference.proven("", "", new long[0], "", key).isSignedWith(key)) {
                throw new IllegalStateException("a reference is not as it was signed");
            }
            // Another kind of agent refuses the metadata.
            try (TransferAgent visitor = EmbeddedAgent.open("warm-up", embedded(settings))) {
                visitor.connect(info.agent(), WARM_UP);
            }
        } catch (TransferException e) {
            log.debug("The first contact was not made ahead: {}", e.getMessage());
        }
    }

    @Override
    public RankInfo ask(NixlSettings settings, NixlSettings.Address peer, Rank rank, Duration timeout)
            throws TransferException {
        try (GuardedSideChannel channel = new GuardedSideChannel(new ZeroMqSideChannel(), settings.access())) {
            List<byte[]> answer = channel.ask(peer.host(), peer.port(), List.of(Handshake.question(rank)), timeout)
                    .get(timeout.toMillis() + 1000, TimeUnit.MILLISECONDS);
            return RankInfo.read(answer.getFirst(), settings.access().secret());
        } catch (ExecutionException | TimeoutException | ConfigException e) {
            Throwable cause = e instanceof ExecutionException && e.getCause() != null ? e.getCause() : e;
            throw new TransferException("the side channel at " + peer + ": " + cause.getMessage(), cause);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TransferException("interrupted", e);
        }
    }

    @Override
    public Executor background() {
        return action -> Thread.ofVirtual().name("kv-transfer").start(action);
    }
}
