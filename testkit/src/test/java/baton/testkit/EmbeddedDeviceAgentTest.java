package baton.testkit;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DevicePeers;
import baton.kv.KvCopier;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import baton.transfer.embedded.EmbeddedAgent.Transport;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The embedded agent between pools of one device. */
class EmbeddedDeviceAgentTest extends TransferAgentContract {
    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        return EmbeddedAgent.open(prefix, EmbeddedAgent.Settings.at("127.0.0.1"));
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        return new Region(new RefusingMemory(arena.allocate(bytes, 64)).memory(), false);
    }

    @Override
    protected MemorySegment bytesOf(Region region) {
        return RefusingMemory.bytes(region.where());
    }

    @Override
    protected long address(MemorySegment bytes) {
        return RefusingMemory.address(bytes);
    }

    @Test
    void memoryOfADeviceIsNotMapped() {
        assertThat(finish(start(Operation.READ, range(0, 0, 4096)))).isInstanceOf(State.Done.class);
        assertThat(here.mappedPeerBytes()).isZero();
    }

    /** Neither memory of the host, nor a peer over TCP. */
    @ParameterizedTest
    @EnumSource(Transport.class)
    void memoryThatTheDeviceDoesNotReachIsRefused(Transport transport) throws TransferException {
        try (Arena arena = Arena.ofShared();
                EmbeddedAgent other = EmbeddedAgent.open(
                        "other", EmbeddedAgent.Settings.at("127.0.0.1").withTransport(transport))) {
            Region host = Region.allocate(arena, 4096, "a test");
            other.register(host);
            Peer toHost = here.connect(other.metadata(), LONG);
            Peer toDevice = other.connect(there.metadata(), LONG);
            for (Operation operation : Operation.values()) {
                Range out = new Range(address(mine), host.address(), 4096);
                Range in = new Range(host.address(), address(remoteMemory), 4096);
                assertRefused(here, operation, toHost, out);
                assertRefused(other, operation, toDevice, in);
            }
            assertThat(finish(start(Operation.READ, range(0, 0, 4096)))).isInstanceOf(State.Done.class);
        }
    }

    /** Each of two pools has a copy that the device does, and one that fails. */
    @Test
    void aTransferThatFailsIsOverWhenAllItsCopiesAre() throws TransferException {
        fill(remoteMemory, 1);
        try (Arena arena = Arena.ofShared()) {
            List<MemorySegment> pools = new ArrayList<>();
            List<Range> ranges = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                MemorySegment memory = arena.allocate(8192, 64);
                MemorySegment pool = memory.asSlice(0, 4096);
                RefusingMemory device = new RefusingMemory(pool);
                here.register(new Region(
                        new KvMemory.Device(
                                address(memory), 8192, device.memory().device(), device),
                        false));
                ranges.add(new Range(address(pool), address(remoteMemory), 4096));
                ranges.add(new Range(address(pool) + 4096, address(remoteMemory), 4096));
                pools.add(pool);
            }
            State state = finish(here.start(Operation.READ, peer, ranges, Optional.empty(), LONG));
            assertThat(state)
                    .isInstanceOfSatisfying(
                            State.Failed.class,
                            failed -> assertThat(failed.message()).contains("copying failed"));
            assertThat(pools)
                    .allSatisfy(pool -> assertThat(pool.mismatch(remoteMemory)).isEqualTo(4096));
        }
    }

    @Test
    void allPoolsOfAPeerAreClosedWhereOneFailsTo() throws TransferException {
        AtomicInteger closed = new AtomicInteger();
        try (Arena arena = Arena.ofShared()) {
            MemorySegment second = registered(there, 4096);
            MemorySegment own = arena.allocate(4096, 64);
            here.register(new Region(new NotClosing(new RefusingMemory(own), closed).memory(), false));
            assertThat(here.connect(there.metadata(), LONG)).isSameAs(peer);
            List<Range> ranges = List.of(
                    new Range(address(own), address(remoteMemory), 2048),
                    new Range(address(own) + 2048, address(second), 2048));
            assertThat(finish(here.start(Operation.READ, peer, ranges, Optional.empty(), LONG)))
                    .isInstanceOf(State.Done.class);
            here.close();
            await("both pools are closed", () -> closed.get() == 2);
        }
    }

    /** A device that does not close the pools of peers. */
    private record NotClosing(RefusingMemory device, AtomicInteger closed) implements KvCopier, DevicePeers {
        KvMemory.Device memory() {
            KvMemory.Device memory = device.memory();
            return new KvMemory.Device(memory.address(), memory.bytes(), memory.device(), this);
        }

        @Override
        public KvFence toHost(List<KvCopier.Range> ranges, MemorySegment host, KvFence after) {
            return device.toHost(ranges, host, after);
        }

        @Override
        public KvFence toDevice(List<KvCopier.Range> ranges, MemorySegment host, KvFence after) {
            return device.toDevice(ranges, host, after);
        }

        @Override
        public Optional<DevicePeers> peers() {
            return Optional.of(this);
        }

        @Override
        public byte[] exported() {
            return device.peers().orElseThrow().exported();
        }

        @Override
        public PeerPool open(byte[] exported) throws IOException {
            PeerPool pool = device.peers().orElseThrow().open(exported);
            return new PeerPool() {
                @Override
                public KvFence copy(List<Copy> copies) {
                    return pool.copy(copies);
                }

                @Override
                public void close() {
                    closed.incrementAndGet();
                    throw new IllegalStateException("the device has failed");
                }
            };
        }
    }

    /** The host's memory is in a file that may shrink. */
    @Test
    void memoryOfADeviceIsWrittenAfterSomeOfTheHostCouldNotBeMapped(@TempDir Path directory) throws Exception {
        Path file = Files.write(directory.resolve("memory"), new byte[4096]);
        try (Arena arena = Arena.ofShared();
                FileChannel channel = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            Region host = new Region(
                    channel.map(FileChannel.MapMode.READ_WRITE, 0, 4096, arena), Optional.of(descriptor(file)));
            Region target = Region.allocate(arena, 4096, "a test");
            host.memory().fill((byte) 3);
            here.register(host);
            there.register(target);
            assertDone(start(Operation.WRITE, new Range(host.address(), target.address(), 4096)));
            assertThat(target.memory().mismatch(host.memory())).isEqualTo(-1);
            fill(mine, 4);
            assertDone(start(Operation.WRITE, range(0, 0, 4096)));
            assertThat(slice(remoteMemory, 0, 4096)).isEqualTo(slice(mine, 0, 4096));
        }
    }

    /** The path by which another process opens a file that this one has open. */
    private static Path descriptor(Path file) throws IOException {
        Path own = Path.of("/proc", String.valueOf(ProcessHandle.current().pid()), "fd");
        try (Stream<Path> all = Files.list(own)) {
            return all.filter(each -> Files.exists(each) && isSame(each, file))
                    .findFirst()
                    .orElseThrow();
        }
    }

    private static boolean isSame(Path one, Path other) {
        try {
            return Files.isSameFile(one, other);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void assertDone(Transfer transfer) {
        assertThat(finish(transfer)).isInstanceOf(State.Done.class);
    }

    private void assertRefused(TransferAgent agent, Operation operation, Peer peer, Range range) {
        fill(mine, 1);
        fill(remoteMemory, 2);
        byte[] wereMine = bytes(mine);
        byte[] remoteBefore = bytes(remoteMemory);
        State state = finish(agent.start(operation, peer, List.of(range), Optional.empty(), LONG));
        assertThat(state).isInstanceOfSatisfying(State.Failed.class, failed -> {
            assertThat(failed.cause()).isEqualTo(Cause.REFUSED);
            assertThat(failed.message()).contains("memory of a device", "kv_buffer_device must be cpu");
        });
        assertThat(bytes(mine)).isEqualTo(wereMine);
        assertThat(bytes(remoteMemory)).isEqualTo(remoteBefore);
    }
}
