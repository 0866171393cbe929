package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.memory.MappableMemory;
import baton.memory.Platform;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferException;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The embedded agent against one in a process of its own. */
class TwoProcessesTest {
    private static final int BYTES = 32 << 20;
    private static final Duration LONG = Duration.ofMinutes(2);

    private final Arena arena = Arena.ofShared();
    private final List<AutoCloseable> opened = new ArrayList<>();

    @AfterEach
    void closeAll() throws Exception {
        for (AutoCloseable each : opened.reversed()) {
            each.close();
        }
        arena.close();
    }

    @ParameterizedTest
    @EnumSource
    void bytesGoBothWays(EmbeddedAgent.Transport transport) throws IOException, TransferException {
        String way = transport == EmbeddedAgent.Transport.AUTO ? " by shared memory" : " over TCP";
        bytesGoBothWays(transport, other(transport), way);
    }

    /** Neither maps the other's memory. */
    @Test
    void bytesGoOverTcpBothWaysWhereMemoryCannotBeMapped() throws IOException, TransferException {
        OtherProcess other =
                opened(new OtherProcess(EmbeddedAgent.Transport.AUTO, BYTES, Platform.of("Mac OS X", "aarch64")));
        bytesGoBothWays(EmbeddedAgent.Transport.AUTO, other, " over TCP");
    }

    private void bytesGoBothWays(EmbeddedAgent.Transport transport, OtherProcess other, String way)
            throws IOException, TransferException {
        EmbeddedAgent agent = agent(transport);
        MemorySegment pool = pool(agent);
        Peer peer = agent.connect(other.metadata, LONG);
        assertThat(peer.toString()).endsWith(way);

        other.tell("fill 1");
        State read = finish(start(agent, peer, Operation.READ, pool, other, Optional.empty()));
        assertThat(read).isInstanceOf(State.Done.class);
        assertThat(pool.mismatch(MemorySegment.ofArray(OtherProcess.pattern(1, BYTES))))
                .isEqualTo(-1);

        pool.copyFrom(MemorySegment.ofArray(OtherProcess.pattern(2, BYTES)));
        State written = finish(start(agent, peer, Operation.WRITE, pool, other, Optional.of("written")));
        assertThat(written).isInstanceOf(State.Done.class);
        assertThat(other.tell("is 2")).isEqualTo("true");
        await("the notification", () -> tell(other, "take").equals("written"));

        pool.copyFrom(MemorySegment.ofArray(OtherProcess.pattern(3, BYTES)));
        String answer = other.tell("read %s %d".formatted(HexFormat.of().formatHex(agent.metadata()), pool.address()));
        assertThat(answer).contains(way + " Done");
        assertThat(other.tell("is 3")).isEqualTo("true");
    }

    @ParameterizedTest
    @EnumSource
    void aProcessThatDiesInTheMiddleEndsItsTransfers(EmbeddedAgent.Transport transport)
            throws IOException, TransferException {
        EmbeddedAgent agent = agent(transport);
        MemorySegment pool = pool(agent);
        OtherProcess other = other(transport);
        Peer peer = agent.connect(other.metadata, LONG);
        other.tell("fill 1");
        List<Transfer> all = new ArrayList<>();
        for (int i = 0; i < 50; i++) {
            all.add(start(agent, peer, i % 2 == 0 ? Operation.READ : Operation.WRITE, pool, other, Optional.empty()));
            if (i == 3) {
                other.kill();
            }
        }
        await("its death is noticed", () -> !peer.alive());
        for (Transfer transfer : all) {
            State state = finish(transfer);
            if (state instanceof State.Failed failed) {
                assertThat(failed.cause()).as(failed.message()).isEqualTo(Cause.PEER_GONE);
            }
        }
        assertThat(all.getLast().state()).isInstanceOf(State.Failed.class);
        assertThatThrownBy(() -> agent.connect(other.metadata, LONG)).isInstanceOf(TransferException.class);
        await("its memory is unmapped", () -> mappingsOf("/memfd:baton: " + OtherProcess.POOL) == 1);

        OtherProcess reborn = other(transport);
        reborn.tell("fill 4");
        Peer again = agent.connect(reborn.metadata, LONG);
        assertThat(again.name()).isNotEqualTo(peer.name());
        assertThat(finish(start(agent, again, Operation.READ, pool, reborn, Optional.empty())))
                .isInstanceOf(State.Done.class);
        assertThat(pool.mismatch(MemorySegment.ofArray(OtherProcess.pattern(4, BYTES))))
                .isEqualTo(-1);
    }

    @ParameterizedTest
    @EnumSource
    void theDeathOfAProcessIsNoticedByTheAgentItWasConnectedTo(EmbeddedAgent.Transport transport)
            throws IOException, TransferException {
        EmbeddedAgent agent = agent(transport);
        MemorySegment pool = pool(agent);
        OtherProcess other = other(transport);
        other.tell("read %s %d".formatted(HexFormat.of().formatHex(agent.metadata()), pool.address()));
        Peer peer = agent.connect(other.metadata, LONG);
        assertThat(peer.alive()).isTrue();
        other.kill();
        await("its death is noticed", () -> !peer.alive());
    }

    private EmbeddedAgent agent(EmbeddedAgent.Transport transport) throws TransferException {
        EmbeddedAgent agent =
                EmbeddedAgent.open("one", EmbeddedAgent.Settings.at("127.0.0.1").withTransport(transport));
        opened.add(agent);
        return agent;
    }

    private MemorySegment pool(EmbeddedAgent agent) throws TransferException {
        MappableMemory pool = MappableMemory.allocate(arena, BYTES, OtherProcess.POOL);
        agent.register(new Region(pool.memory(), Optional.of(pool.file())));
        return pool.memory();
    }

    private OtherProcess other(EmbeddedAgent.Transport transport) throws IOException {
        return opened(new OtherProcess(transport, BYTES, Platform.current()));
    }

    private OtherProcess opened(OtherProcess other) {
        opened.add(other);
        return other;
    }

    private static Transfer start(
            EmbeddedAgent agent,
            Peer peer,
            Operation operation,
            MemorySegment pool,
            OtherProcess other,
            Optional<String> notification) {
        return agent.start(
                operation,
                peer,
                List.of(new Range(pool.address(), other.address, BYTES)),
                notification.map(text -> text.getBytes(StandardCharsets.UTF_8)),
                LONG);
    }

    private static State finish(Transfer transfer) {
        await("the transfer is over", () -> !(transfer.state() instanceof State.UnderWay));
        return transfer.state();
    }

    private static String tell(OtherProcess other, String command) {
        try {
            return other.tell(command);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private static long mappingsOf(String name) {
        try (var lines = Files.lines(Path.of("/proc/self/maps"))) {
            return lines.filter(line -> line.contains(name)).count();
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    private static void await(String what, BooleanSupplier condition) {
        long deadline = System.nanoTime() + LONG.toNanos();
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime()).as("in time: " + what).isLessThan(deadline);
            LockSupport.parkNanos(1_000_000);
        }
    }
}
