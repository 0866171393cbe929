package baton.transfer.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferAgent.Registration;
import baton.transfer.TransferException;
import java.io.BufferedReader;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Needs NIXL's library; {@code BATON_NIXL_LIBRARY} names it where it is not installed. */
class NixlAgentTest {
    private static final Duration SOON = Duration.ofMinutes(2);
    private static final String BEST = "";
    private static final String TCP = "TLS=tcp";

    private final Arena arena = Arena.ofShared();
    private final List<TransferAgent> agents = new ArrayList<>();
    private final List<Process> processes = new ArrayList<>();

    @BeforeAll
    static void skipNixlsDestructors() {
        NixlExit.atShutdown();
    }

    @BeforeEach
    void nixlIsThere() {
        assumeTrue(
                NixlLibrary.find(Optional.empty()) instanceof NixlLibrary.Found,
                () -> NixlLibrary.find(Optional.empty()) instanceof NixlLibrary.Absent absent ? absent.reason() : "");
    }

    @AfterEach
    void end() throws InterruptedException {
        for (Process process : processes) {
            process.destroyForcibly().waitFor();
        }
        agents.forEach(TransferAgent::close);
        arena.close();
    }

    @ParameterizedTest
    @ValueSource(strings = {BEST, TCP})
    void movesListsOfRangesBothWaysAndNotifiesAfterThem(String transport) throws Exception {
        NixlAgent here = agent(transport);
        NixlAgent there = agent(transport);
        MemorySegment localMemory = memory(here, 48 << 20, 1);
        MemorySegment remoteMemory = memory(there, 48 << 20, 2);
        byte[] before = remoteMemory.toArray(ValueLayout.JAVA_BYTE);
        Peer peer = here.connect(there.metadata(), SOON);
        assertThat(peer.name()).isEqualTo(there.name());

        // Scattered, neighbouring, and longer than one post.
        List<Range> reads = new ArrayList<>();
        for (int i = 0; i < 3000; i++) {
            reads.add(new Range(localMemory.address() + i * 4096L, remoteMemory.address() + (2999 - i) * 4096L, 4000));
        }
        reads.add(new Range(localMemory.address() + (12 << 20), remoteMemory.address() + (13 << 20), 35 << 20));
        State read = over(here.start(Operation.READ, peer, reads, Optional.of(bytes("read")), SOON));

        assertThat(read).isInstanceOf(State.Done.class);
        assertThat(((State.Done) read).bytes()).isEqualTo(3000 * 4000L + (35 << 20));
        for (Range range : reads) {
            assertThat(slice(localMemory, range.local(), range.bytes())
                            .mismatch(slice(remoteMemory, range.remote(), range.bytes())))
                    .isEqualTo(-1);
        }
        assertThat(remoteMemory.mismatch(MemorySegment.ofArray(before)))
                .as("a read writes nothing")
                .isEqualTo(-1);
        assertThat(messages(there, 1)).containsExactly(here.name() + ":read");

        fill(localMemory, 3);
        assertThat(over(here.start(
                        Operation.WRITE,
                        peer,
                        List.of(new Range(localMemory.address() + 5, remoteMemory.address() + 7, 20 << 20)),
                        Optional.of(bytes("written")),
                        SOON)))
                .isInstanceOf(State.Done.class);
        assertThat(messages(there, 1)).containsExactly(here.name() + ":written");
        assertThat(localMemory.asSlice(5, 20 << 20).mismatch(remoteMemory.asSlice(7, 20 << 20)))
                .isEqualTo(-1);
        assertThat(remoteMemory
                        .asSlice(0, 7)
                        .mismatch(MemorySegment.ofArray(before).asSlice(0, 7)))
                .isEqualTo(-1);
    }

    @ParameterizedTest
    @ValueSource(strings = {BEST, TCP})
    void messagesArriveInOrder(String transport) throws Exception {
        NixlAgent here = agent(transport);
        NixlAgent there = agent(transport);
        Peer peer = here.connect(there.metadata(), SOON);
        Peer back = there.connect(here.metadata(), SOON);
        List<String> expected = new ArrayList<>();
        for (int i = 0; i < 500; i++) {
            here.notify(peer, bytes("message " + i));
            expected.add(here.name() + ":message " + i);
        }
        here.notify(peer, new byte[0]);
        expected.add(here.name() + ":");
        assertThat(messages(there, expected.size())).isEqualTo(expected);
        there.notify(back, bytes("x".repeat(1 << 20)));
        assertThat(messages(here, 1).getFirst()).hasSize(there.name().length() + 1 + (1 << 20));
        assertThatThrownBy(() -> here.notify(peer, new byte[(1 << 20) + 1])).isInstanceOf(TransferException.class);
    }

    @Test
    void rangesOutsideOfRegisteredMemoryAreRefused() throws Exception {
        NixlAgent here = agent(BEST);
        NixlAgent there = agent(BEST);
        MemorySegment localMemory = memory(here, 4096, 1);
        MemorySegment remoteMemory = memory(there, 4096, 2);
        Peer peer = here.connect(there.metadata(), SOON);
        long local = localMemory.address();
        long remote = remoteMemory.address();
        for (Range wrong : List.of(
                new Range(local - 1, remote, 10),
                new Range(local + 4090, remote, 10),
                new Range(local, remote + 4095, 2),
                new Range(local, remote - 1, 2),
                new Range(local, Long.MAX_VALUE - 1, 8),
                new Range(-4096, remote, 8),
                new Range(local, remote, Long.MAX_VALUE))) {
            State state = over(here.start(
                    Operation.READ, peer, List.of(new Range(local, remote, 16), wrong), Optional.empty(), SOON));
            assertThat(state)
                    .isInstanceOfSatisfying(
                            State.Failed.class,
                            failed -> assertThat(failed.cause()).isEqualTo(Cause.REFUSED));
        }
        NixlAgent other = agent(BEST);
        assertThat(over(other.start(
                        Operation.READ, peer, List.of(new Range(local, remote, 16)), Optional.empty(), SOON)))
                .isInstanceOfSatisfying(
                        State.Failed.class, failed -> assertThat(failed.cause()).isEqualTo(Cause.REFUSED));
        assertThat(over(here.start(
                        Operation.READ, peer, List.of(new Range(local, remote, 4096)), Optional.empty(), SOON)))
                .isInstanceOf(State.Done.class);
    }

    @Test
    void unregisteredMemoryIsNotMovedAnyMore() throws Exception {
        NixlAgent here = agent(BEST);
        NixlAgent there = agent(BEST);
        MemorySegment localMemory = arena.allocate(1 << 20, 64);
        Registration registration = here.register(new Region(localMemory, Optional.empty()));
        MemorySegment remoteMemory = memory(there, 1 << 20, 2);
        Peer peer = here.connect(there.metadata(), SOON);
        List<Range> ranges = List.of(new Range(localMemory.address(), remoteMemory.address(), 1 << 20));
        assertThat(over(here.start(Operation.READ, peer, ranges, Optional.empty(), SOON)))
                .isInstanceOf(State.Done.class);
        registration.close();
        registration.close();
        assertThat(over(here.start(Operation.READ, peer, ranges, Optional.empty(), SOON)))
                .isInstanceOfSatisfying(
                        State.Failed.class, failed -> assertThat(failed.cause()).isEqualTo(Cause.REFUSED));
    }

    @ParameterizedTest
    @ValueSource(strings = {BEST, TCP})
    void aClosedAgentIsGone(String transport) throws Exception {
        NixlAgent here = agent(transport);
        NixlAgent there = agent(transport);
        MemorySegment localMemory = memory(here, 4096, 1);
        MemorySegment remoteMemory = memory(there, 4096, 2);
        byte[] metadata = there.metadata();
        Peer peer = here.connect(metadata, SOON);
        assertThat(here.connect(metadata, SOON)).isSameAs(peer);
        assertThat(peer.alive()).isTrue();

        there.close();

        until(() -> !peer.alive());
        List<Range> ranges = List.of(new Range(localMemory.address(), remoteMemory.address(), 16));
        assertThat(over(here.start(Operation.READ, peer, ranges, Optional.empty(), SOON)))
                .isInstanceOfSatisfying(
                        State.Failed.class, failed -> assertThat(failed.cause()).isEqualTo(Cause.PEER_GONE));
        assertThatThrownBy(() -> here.notify(peer, bytes("x"))).isInstanceOf(TransferException.class);
        assertThatThrownBy(() -> here.connect(metadata, Duration.ofSeconds(2))).isInstanceOf(TransferException.class);
    }

    @Test
    void aClosedPeerCanBeConnectedAgain() throws Exception {
        NixlAgent here = agent(BEST);
        NixlAgent there = agent(BEST);
        MemorySegment localMemory = memory(here, 4096, 1);
        Peer first = here.connect(there.metadata(), SOON);
        MemorySegment remoteMemory = memory(there, 4096, 2);
        List<Range> ranges = List.of(new Range(localMemory.address(), remoteMemory.address(), 4096));
        assertThat(over(here.start(Operation.READ, first, ranges, Optional.empty(), SOON)))
                .as("registered after the connection was made")
                .isInstanceOf(State.Failed.class);
        assertThat(here.connect(there.metadata(), SOON)).isSameAs(first);
        assertThat(over(here.start(Operation.READ, first, ranges, Optional.empty(), SOON)))
                .isInstanceOf(State.Done.class);
        first.close();
        assertThat(first.alive()).isFalse();
        Peer second = here.connect(there.metadata(), SOON);
        assertThat(second).isNotSameAs(first);
        assertThat(over(here.start(Operation.READ, second, ranges, Optional.empty(), SOON)))
                .isInstanceOf(State.Done.class);
    }

    @Test
    void aTransferEndsWhenItIsCancelledOrItsTimeIsUp() throws Exception {
        NixlAgent here = agent(TCP);
        NixlAgent there = agent(TCP);
        MemorySegment localMemory = memory(here, 256 << 20, 1);
        MemorySegment remoteMemory = memory(there, 256 << 20, 2);
        Peer peer = here.connect(there.metadata(), SOON);
        List<Range> ranges = List.of(new Range(localMemory.address(), remoteMemory.address(), 256 << 20));

        Transfer cancelled = here.start(Operation.READ, peer, ranges, Optional.of(bytes("never")), SOON);
        cancelled.cancel();
        assertThat(over(cancelled))
                .isInstanceOfSatisfying(
                        State.Failed.class, failed -> assertThat(failed.cause()).isEqualTo(Cause.CANCELLED));
        State late = over(here.start(Operation.READ, peer, ranges, Optional.of(bytes("never")), Duration.ZERO));
        assertThat(late)
                .isInstanceOfSatisfying(
                        State.Failed.class, failed -> assertThat(failed.cause()).isEqualTo(Cause.TIMEOUT));
        here.notify(peer, bytes("after"));
        assertThat(messages(there, 1)).containsExactly(here.name() + ":after");
        Transfer underWay = here.start(Operation.READ, peer, ranges, Optional.empty(), SOON);
        here.close();
        assertThat(underWay.state()).isNotInstanceOf(State.UnderWay.class);
        assertThat(here.start(Operation.READ, peer, ranges, Optional.empty(), SOON)
                        .state())
                .isInstanceOf(State.Failed.class);
    }

    @ParameterizedTest
    @ValueSource(strings = {BEST, TCP})
    void theDeathOfAPeerProcessEndsItsTransfers(String transport) throws Exception {
        NixlAgent here = agent(transport);
        MemorySegment localMemory = memory(here, 64 << 20, 1);
        Remote remote = remote(transport, 64 << 20);
        Peer peer = here.connect(remote.metadata, SOON);
        List<Range> ranges = List.of(new Range(localMemory.address(), remote.address, 64 << 20));
        assertThat(over(here.start(Operation.READ, peer, ranges, Optional.of(bytes("read")), SOON)))
                .isInstanceOf(State.Done.class);
        assertThat(localMemory.mismatch(pattern(64 << 20, RemoteAgent.SEED))).isEqualTo(-1);
        assertThat(remote.out.readLine()).isEqualTo("message " + here.name() + " read");

        List<Transfer> running = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            running.add(here.start(Operation.READ, peer, ranges, Optional.empty(), SOON));
        }
        remote.process.destroyForcibly().waitFor();
        for (Transfer transfer : running) {
            State state = over(transfer);
            if (state instanceof State.Failed failed) {
                assertThat(failed.cause()).isEqualTo(Cause.PEER_GONE);
            }
        }
        until(() -> !peer.alive());
        assertThat(over(here.start(Operation.READ, peer, ranges, Optional.empty(), SOON)))
                .isInstanceOfSatisfying(
                        State.Failed.class, failed -> assertThat(failed.cause()).isEqualTo(Cause.PEER_GONE));
        assertThatThrownBy(() -> here.connect(remote.metadata, Duration.ofSeconds(2)))
                .isInstanceOf(TransferException.class);

        Remote next = remote(transport, 4096);
        Peer other = here.connect(next.metadata, SOON);
        assertThat(over(here.start(
                        Operation.READ,
                        other,
                        List.of(new Range(localMemory.address(), next.address, 4096)),
                        Optional.empty(),
                        SOON)))
                .isInstanceOf(State.Done.class);
    }

    @Test
    void aPeerThatIsStoppedHoldsNoTransferBeyondItsTimeAndWritesNothingLater() throws Exception {
        NixlAgent here = agent(TCP);
        MemorySegment localMemory = memory(here, 64 << 20, 1);
        Remote remote = remote(TCP, 64 << 20);
        Peer peer = here.connect(remote.metadata, SOON);
        signal("STOP", remote.process);
        Transfer transfer = here.start(
                Operation.READ,
                peer,
                List.of(new Range(localMemory.address(), remote.address, 64 << 20)),
                Optional.empty(),
                Duration.ofMillis(300));
        assertThat(over(transfer))
                .isInstanceOfSatisfying(
                        State.Failed.class, failed -> assertThat(failed.cause()).isEqualTo(Cause.TIMEOUT));
        fill(localMemory, 9);
        signal("CONT", remote.process);

        Remote next = remote(TCP, 4096);
        Peer other = here.connect(next.metadata, SOON);
        here.notify(other, bytes("still here"));
        assertThat(next.out.readLine()).isEqualTo("message " + here.name() + " still here");
        assertThat(peer.alive()).isFalse();
        assertThat(localMemory.mismatch(pattern(64 << 20, 9))).isEqualTo(-1);
    }

    @Test
    void damagedMetadataIsRefused() throws Exception {
        NixlAgent here = agent(BEST);
        NixlAgent there = agent(BEST);
        memory(there, 4096, 2);
        byte[] metadata = there.metadata();
        int nixl = NixlMetadata.parse(metadata).blob().length;
        for (int length = 0; length < metadata.length; length++) {
            if (length != nixl) {
                byte[] cut = Arrays.copyOf(metadata, length);
                assertThatThrownBy(() -> here.connect(cut, SOON)).isInstanceOf(TransferException.class);
            }
        }
        Random random = new Random(7);
        for (int i = 0; i < 2000; i++) {
            byte[] flipped = metadata.clone();
            flipped[random.nextInt(flipped.length)] ^= (byte) (1 << random.nextInt(8));
            assertThatThrownBy(() -> NixlMetadata.parse(flipped)).isInstanceOf(TransferException.class);
        }
        assertThatThrownBy(() -> here.connect(here.metadata(), SOON)).hasMessageContaining("itself");
        // An agent that is not Baton's has NIXL's part only.
        Peer peer = here.connect(Arrays.copyOf(metadata, nixl), SOON);
        assertThat(peer.alive()).isTrue();
    }

    @Test
    void backendsThatCannotDoItAreRefusedWithTheReason() {
        assertThatThrownBy(() -> open(NixlAgent.Settings.of("NO_SUCH")))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("NO_SUCH")
                .hasMessageContaining("UCX");
        assertThatThrownBy(() -> open(NixlAgent.Settings.of("POSIX")))
                .isInstanceOf(TransferException.class)
                .hasMessageContaining("POSIX");
    }

    @Test
    void theJvmsOwnSignalsStayItsOwn() throws Exception {
        agent(BEST);
        // Compiled code finds a null pointer by SIGSEGV.
        int caught = 0;
        String[] strings = {"a", "b", null};
        for (int i = 0; i < 200_000; i++) {
            try {
                caught -= strings[i % 2].length();
                if (i % 1000 == 0) {
                    caught += strings[2].length();
                }
            } catch (NullPointerException e) {
                caught += 1_000_000;
            }
        }
        assertThat(caught).isEqualTo(200 * 1_000_000 - 200_000);
    }

    private NixlAgent agent(String transport) throws TransferException {
        return open(
                transport.isEmpty()
                        ? NixlAgent.Settings.of("UCX")
                        : new NixlAgent.Settings(List.of("UCX"), Map.of("UCX", Map.of("engine_config", transport))));
    }

    private NixlAgent open(NixlAgent.Settings settings) throws TransferException {
        NixlAgent agent = NixlAgent.open((NixlLibrary.Found) NixlLibrary.find(Optional.empty()), "baton", settings);
        agents.add(agent);
        return agent;
    }

    private MemorySegment memory(TransferAgent agent, long bytes, int seed) throws TransferException {
        MemorySegment memory = arena.allocate(bytes, 64);
        fill(memory, seed);
        agent.register(new Region(memory, Optional.empty()));
        return memory;
    }

    private record Remote(Process process, BufferedReader out, byte[] metadata, long address) {}

    private Remote remote(String transport, long bytes) throws IOException {
        Process process = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "--enable-native-access=ALL-UNNAMED",
                        "-cp",
                        System.getProperty("java.class.path"),
                        RemoteAgent.class.getName(),
                        transport,
                        Long.toString(bytes))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        processes.add(process);
        BufferedReader out = process.inputReader(StandardCharsets.UTF_8);
        return new Remote(process, out, HexFormat.of().parseHex(out.readLine()), Long.parseLong(out.readLine()));
    }

    private static void signal(String name, Process process) throws IOException, InterruptedException {
        assertThat(new ProcessBuilder("kill", "-" + name, Long.toString(process.pid()))
                        .start()
                        .waitFor())
                .isZero();
    }

    static void fill(MemorySegment memory, int seed) {
        memory.copyFrom(pattern(memory.byteSize(), seed));
    }

    private static MemorySegment pattern(long bytes, int seed) {
        byte[] pattern = new byte[(int) bytes];
        new Random(seed).nextBytes(pattern);
        return MemorySegment.ofArray(pattern);
    }

    private static MemorySegment slice(MemorySegment memory, long address, long bytes) {
        return memory.asSlice(address - memory.address(), bytes);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static List<String> messages(TransferAgent agent, int count) {
        List<String> messages = new ArrayList<>();
        until(() -> {
            for (Notification one : agent.takeNotifications()) {
                messages.add(one.from() + ":" + new String(one.message(), StandardCharsets.UTF_8));
            }
            return messages.size() >= count;
        });
        return messages;
    }

    private static State over(Transfer transfer) {
        until(() -> !(transfer.state() instanceof State.UnderWay));
        return transfer.state();
    }

    private static void until(BooleanSupplier condition) {
        long limit = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime()).as("waited for 60 s").isLessThan(limit);
            LockSupport.parkNanos(100_000);
        }
    }
}
