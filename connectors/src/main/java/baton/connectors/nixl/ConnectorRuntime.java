package baton.connectors.nixl;

import baton.kv.connector.Rank;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Executor;

/** What the connector needs of the world around it: memory, an agent, a side channel, threads. */
public interface ConnectorRuntime {
    /**
     * An agent for one rank.
     *
     * @throws baton.kv.ConfigException if the settings ask for one that cannot be had
     */
    TransferAgent agent(NixlSettings settings);

    /** Zeroed memory that a same-host peer can map where this is possible. */
    Memory allocate(long bytes);

    /**
     * Answers handshakes of those that may have them, at the settings' address.
     *
     * @throws TransferException if it cannot listen there
     */
    SideServer serve(NixlSettings settings, Map<Rank, RankInfo> ranks) throws TransferException;

    /**
     * Has, with itself, what comes with the first contact of a peer, so that this is done before there are requests: classes are
     * loaded and security providers set up, which is most of what a first contact takes. What fails is left out.
     */
    default void warmUp(NixlSettings settings, NixlSettings.Address self) {}

    /**
     * Asks a peer's side channel about one of its ranks. Waits; may be called from any thread.
     *
     * @throws TransferException if there is no answer in time, or not a good one, or the peer does not show that it knows the secret
     */
    RankInfo ask(NixlSettings settings, NixlSettings.Address peer, Rank rank, Duration timeout)
            throws TransferException;

    /** Runs what waits for peers, and what computes beside the engine's step. */
    Executor background();

    /** Memory and its life. */
    interface Memory extends AutoCloseable {
        Region region();

        @Override
        void close();
    }

    /** A side channel that answers. */
    interface SideServer extends AutoCloseable {
        int port();

        @Override
        void close();
    }
}
