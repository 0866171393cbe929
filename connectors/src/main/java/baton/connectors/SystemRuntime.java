package baton.connectors;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.GuardedSideChannel;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SealedChannel;
import baton.messages.SideChannel;
import baton.messages.zeromq.ZeroMqPeerChannel;
import baton.messages.zeromq.ZeroMqSideChannel;
import baton.pipe.WireTransport;
import baton.pipe.select.WireTransports;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import baton.transfer.select.TransferAgents;
import java.lang.foreign.Arena;
import java.util.Optional;
import java.util.concurrent.ThreadFactory;

/**
 * The machine itself: mappable memory, the transfer agent and wires that settings ask for, ZeroMQ's protocol, virtual threads. Tests override
 * parts of it.
 */
public class SystemRuntime implements ConnectorRuntime {
    private static final String AGENT_NAME = "baton";

    @Override
    public Ticker ticker() {
        return Ticker.system();
    }

    @Override
    public ThreadFactory threads() {
        return Thread.ofVirtual().name("kv-transfer").factory();
    }

    @Override
    public Memory allocate(long bytes, String purpose) {
        Arena arena = Arena.ofShared();
        try {
            return new SystemMemory(arena, Region.allocate(arena, bytes, purpose));
        } catch (RuntimeException e) {
            arena.close();
            throw e;
        }
    }

    private record SystemMemory(Arena arena, Region region) implements Memory {
        @Override
        public void close() {
            arena.close();
        }
    }

    @Override
    public TransferAgent transferAgent(JsonFields extra, String host, PeerAccess access) {
        warmUpCipher(access);
        try {
            return TransferAgents.open(AGENT_NAME, extra, embedded(host, access));
        } catch (TransferException e) {
            throw new ConfigException("kv_connector", "no transfer agent: " + e.getMessage(), e);
        }
    }

    /** Always an embedded agent: it starts fast, and agents of another kind have no first connection that takes long. */
    @Override
    public Optional<TransferAgent> warmUpAgent(String host, PeerAccess access) {
        try {
            return Optional.of(EmbeddedAgent.open("warm-up", embedded(host, access)));
        } catch (TransferException e) {
            return Optional.empty();
        }
    }

    private static EmbeddedAgent.Settings embedded(String host, PeerAccess access) {
        return EmbeddedAgent.Settings.at(host).withAccess(Optional.of(access));
    }

    private static void warmUpCipher(PeerAccess access) {
        access.sealing().ifPresent(_ -> SealedChannel.warmUp());
    }

    @Override
    public SideChannel sideChannel() {
        return new ZeroMqSideChannel();
    }

    @Override
    public GuardedSideChannel sideChannel(PeerAccess access) {
        return new GuardedSideChannel(new ZeroMqSideChannel(access), access);
    }

    @Override
    public PeerChannel peerChannel() {
        return new ZeroMqPeerChannel();
    }

    @Override
    public PeerChannel peerChannel(PeerAccess access) {
        return new ZeroMqPeerChannel(access);
    }

    @Override
    public WireTransport wires(String field, String name, PeerAccess access) {
        warmUpCipher(access);
        return WireTransports.named(field, name, access, ticker());
    }
}
