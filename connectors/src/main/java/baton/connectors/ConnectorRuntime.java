package baton.connectors;

import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.GuardedSideChannel;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.pipe.WireTransport;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import java.util.Optional;
import java.util.concurrent.Executor;
import java.util.concurrent.ThreadFactory;

/**
 * The machine's services for connectors: clock, threads, memory, transfer agents, messages, wires. {@link SystemRuntime} is the real
 * one; a simulation provides its own. Knows no connector's types. Safe for use by several threads.
 */
public interface ConnectorRuntime {
    /** The clock by which connectors measure and wait. Engines have the same one. */
    Ticker ticker();

    /** Makes threads, not started, for work that waits, or computes beside the engine's step. They may be virtual. */
    ThreadFactory threads();

    /** Runs each task in a thread of its own from {@link #threads}. */
    default Executor background() {
        return task -> threads().newThread(task).start();
    }

    /**
     * Zeroed memory that processes of the same host can map, where the platform has that.
     *
     * @param purpose of the memory, for errors
     * @throws IllegalStateException if the system refuses
     */
    Memory allocate(long bytes, String purpose);

    /**
     * Opens a transfer agent for one rank.
     *
     * @param extra {@code kv_connector_extra_config}, with the choice of the agent ({@link baton.transfer.select.TransferAgents})
     * @param host address at which peers reach the agent, if it listens
     * @param access which peers it accepts
     * @throws baton.kv.ConfigException if the settings ask for an agent that cannot be had
     */
    TransferAgent transferAgent(JsonFields extra, String host, PeerAccess access);

    /**
     * A transfer agent that plays a peer's part in a warm-up: the first connection loads classes and security providers.
     *
     * @return empty where there is nothing to be warmed up, as in a simulation
     */
    default Optional<TransferAgent> warmUpAgent(String host, PeerAccess access) {
        return Optional.empty();
    }

    /** Opens a channel for single questions between instances. */
    SideChannel sideChannel();

    /** Opens a side channel that serves and asks only peers that {@code access} admits, sealed where that has a secret. */
    default GuardedSideChannel sideChannel(PeerAccess access) {
        return new GuardedSideChannel(sideChannel(), access);
    }

    /** Opens a channel for lasting connections, also to those that are no instances of Baton. */
    PeerChannel peerChannel();

    /** Opens a channel for lasting connections between Baton's instances, sealed where {@code access} has a secret. */
    default PeerChannel peerChannel(PeerAccess access) {
        return peerChannel();
    }

    /**
     * Opens the wire transport that a setting names ({@link baton.pipe.select.WireTransports}).
     *
     * @param field the setting that has the name, for errors
     * @param access which peers may connect, where the transport can tell
     * @throws baton.kv.ConfigException if there is no transport of that name, or it cannot be had here
     */
    WireTransport wires(String field, String name, PeerAccess access);

    /** Memory that is freed by {@link #close}. */
    interface Memory extends AutoCloseable {
        Region region();

        @Override
        void close();
    }
}
