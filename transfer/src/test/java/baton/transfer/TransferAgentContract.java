package baton.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.fail;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferAgent.Peer;
import baton.transfer.TransferAgent.Permit;
import baton.transfer.TransferAgent.Registration;
import baton.transfer.TransferAgent.Span;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;

/** The contract of every transfer agent. An implementation's test extends it and makes agents and memory. */
@TestInstance(TestInstance.Lifecycle.PER_METHOD)
public abstract class TransferAgentContract {
    protected static final Duration LONG = Duration.ofMinutes(2);
    private static final long DEADLINE_NANOS = 120_000_000_000L;
    private static final int POOL = 1 << 20;
    private static final int LARGE = 48 << 20;

    private final Arena arena = Arena.ofShared();
    private final List<TransferAgent> agents = new ArrayList<>();

    /** The agent that starts things, and the one it does them to. */
    protected TransferAgent here;

    protected TransferAgent there;
    protected MemorySegment mine;
    protected MemorySegment remoteMemory;
    protected Registration ofTheirs;
    protected Peer peer;

    /** An agent with a name that begins so. */
    protected abstract TransferAgent open(String prefix) throws TransferException;

    /** Memory that the implementation moves in the way that is to be tested. */
    protected abstract Region allocate(Arena arena, long bytes);

    /** Where the bytes of a region can be seen. */
    protected MemorySegment bytesOf(Region region) {
        return region.memory();
    }

    /** The address of bytes in the memory that is registered. */
    protected long address(MemorySegment bytes) {
        return bytes.address();
    }

    private Span span(MemorySegment bytes) {
        return new Span(address(bytes), bytes.byteSize());
    }

    /** Lets time pass where it does not by itself. */
    protected void progress() {
        LockSupport.parkNanos(50_000);
    }

    @BeforeEach
    void connectTwo() throws TransferException {
        here = agent("here");
        there = agent("there");
        mine = registered(here, POOL);
        Region region = allocate(arena, POOL);
        remoteMemory = bytesOf(region);
        ofTheirs = there.register(region);
        peer = here.connect(there.metadata(), LONG);
    }

    @AfterEach
    void closeAll() {
        agents.forEach(TransferAgent::close);
        arena.close();
    }

    @Test
    void aReadMovesThePeersBytes() {
        fill(remoteMemory, 1);
        fill(mine, 2);
        byte[] before = bytes(mine);
        State state = finish(start(Operation.READ, range(100, 4096, 5000)));
        assertThat(state).isInstanceOf(State.Done.class);
        assertThat(((State.Done) state).bytes()).isEqualTo(5000);
        assertThat(((State.Done) state).elapsed()).isPositive();
        assertThat(slice(mine, 100, 5000)).isEqualTo(slice(remoteMemory, 4096, 5000));
        assertThat(slice(mine, 0, 100)).isEqualTo(Arrays.copyOf(before, 100));
        assertThat(slice(mine, 5100, 100)).isEqualTo(Arrays.copyOfRange(before, 5100, 5200));
    }

    @Test
    void aWriteMovesLocalBytesToThePeer() {
        fill(remoteMemory, 3);
        fill(mine, 4);
        byte[] before = bytes(remoteMemory);
        State state = finish(start(Operation.WRITE, range(64, 333, 7777)));
        assertThat(state).isInstanceOf(State.Done.class);
        assertThat(((State.Done) state).bytes()).isEqualTo(7777);
        assertThat(slice(remoteMemory, 333, 7777)).isEqualTo(slice(mine, 64, 7777));
        assertThat(slice(remoteMemory, 0, 333)).isEqualTo(Arrays.copyOfRange(before, 0, 333));
        assertThat(slice(remoteMemory, 8110, 100)).isEqualTo(Arrays.copyOfRange(before, 8110, 8210));
    }

    @Test
    void tenThousandSmallRangesArriveWhereTheyBelong() {
        int count = 10_000;
        int size = 37;
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            order.add(i);
        }
        for (Operation operation : Operation.values()) {
            fill(remoteMemory, 5);
            fill(mine, 6);
            Collections.shuffle(order, new Random(7));
            List<Range> ranges = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                ranges.add(range((long) i * 64, (long) order.get(i) * 64 + 3, size));
            }
            byte[] wereMine = bytes(mine);
            byte[] remoteBefore = bytes(remoteMemory);
            assertThat(finish(here.start(operation, peer, ranges, Optional.empty(), LONG)))
                    .isInstanceOf(State.Done.class);
            byte[] expected = operation == Operation.READ ? wereMine : remoteBefore;
            for (int i = 0; i < count; i++) {
                int local = i * 64;
                int remote = order.get(i) * 64 + 3;
                if (operation == Operation.READ) {
                    System.arraycopy(remoteBefore, remote, expected, local, size);
                } else {
                    System.arraycopy(wereMine, local, expected, remote, size);
                }
            }
            assertThat(bytes(operation == Operation.READ ? mine : remoteMemory)).isEqualTo(expected);
        }
    }

    @Test
    void allOfARegionIsMoved() {
        fill(remoteMemory, 8);
        assertThat(finish(start(Operation.READ, range(0, 0, POOL)))).isInstanceOf(State.Done.class);
        assertThat(mine.mismatch(remoteMemory)).isEqualTo(-1);
    }

    @Test
    void aNotificationComesAfterTheLastByte() {
        fill(mine, 9);
        for (int i = 0; i < 20; i++) {
            fill(remoteMemory, 10);
            Transfer transfer =
                    here.start(Operation.WRITE, peer, List.of(range(0, 0, POOL)), Optional.of(text("written")), LONG);
            List<Notification> arrived = awaitNotifications(1);
            assertThat(remoteMemory.mismatch(mine)).isEqualTo(-1);
            assertThat(arrived.getFirst().from()).isEqualTo(here.name());
            assertThat(arrived.getFirst().message()).isEqualTo(text("written"));
            assertThat(finish(transfer)).isInstanceOf(State.Done.class);
        }
    }

    @Test
    void aReadNotifiesTheOwner() {
        assertThat(finish(
                        here.start(Operation.READ, peer, List.of(range(0, 0, 4096)), Optional.of(text("read")), LONG)))
                .isInstanceOf(State.Done.class);
        assertThat(awaitNotifications(1).getFirst().message()).isEqualTo(text("read"));
    }

    @Test
    void messagesComeInOrder() throws TransferException {
        for (int i = 0; i < 1000; i++) {
            here.notify(peer, text("message " + i));
        }
        List<Notification> arrived = awaitNotifications(1000);
        for (int i = 0; i < 1000; i++) {
            assertThat(arrived.get(i).message()).isEqualTo(text("message " + i));
        }
        assertThat(there.takeNotifications()).isEmpty();
    }

    @Test
    void aMessageIsBytesOfAnyKind() throws TransferException {
        byte[] all = new byte[256];
        for (int i = 0; i < all.length; i++) {
            all[i] = (byte) i;
        }
        List<byte[]> messages = List.of(
                all,
                new byte[] {0},
                new byte[] {(byte) 0xc3},
                text("gr\u00fc\u00dfe \"\\\n"),
                text("baton/base64:AAAA"));
        for (byte[] message : messages) {
            here.notify(peer, message);
        }
        List<Notification> arrived = awaitNotifications(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            assertThat(arrived.get(i).message()).isEqualTo(messages.get(i));
        }
    }

    @Test
    void aFailedTransferDoesNotNotify() throws TransferException {
        assertFails(
                here.start(
                        Operation.WRITE,
                        peer,
                        List.of(range(0, POOL - 10, 20)),
                        Optional.of(text("must not come")),
                        LONG),
                Cause.REFUSED);
        here.notify(peer, text("after"));
        assertThat(awaitNotifications(1).getFirst().message()).isEqualTo(text("after"));
    }

    @Test
    void memoryThatIsNotRegisteredIsRefused() {
        MemorySegment other = arena.allocate(4096);
        fill(remoteMemory, 11);
        fill(mine, 12);
        byte[] wereMine = bytes(mine);
        byte[] remoteBefore = bytes(remoteMemory);
        for (Operation operation : Operation.values()) {
            List<Range> refused = List.of(
                    new Range(address(other), address(remoteMemory), 4096),
                    new Range(address(mine), address(other), 4096),
                    range(POOL - 100, 0, 101),
                    range(0, POOL - 100, 101),
                    range(-1, 0, 10),
                    range(0, -1, 10),
                    new Range(address(mine), Long.MAX_VALUE - 5, 100),
                    new Range(address(mine), 0, 100),
                    new Range(address(mine), -4096, 100),
                    new Range(address(mine), address(remoteMemory), Long.MAX_VALUE),
                    new Range(address(mine), address(remoteMemory) + 10, Long.MAX_VALUE - address(remoteMemory)));
            for (Range range : refused) {
                assertFails(start(operation, range), Cause.REFUSED);
            }
        }
        assertThat(bytes(mine)).isEqualTo(wereMine);
        assertThat(bytes(remoteMemory)).isEqualTo(remoteBefore);
        assertThat(finish(start(Operation.READ, range(0, 0, POOL)))).isInstanceOf(State.Done.class);
    }

    @Test
    void memoryIsOutOfReachOnceItsRegistrationIsClosed() throws TransferException {
        assertThat(finish(start(Operation.READ, range(0, 0, 100)))).isInstanceOf(State.Done.class);
        ofTheirs.close();
        fill(mine, 13);
        fill(remoteMemory, 14);
        byte[] remoteBefore = bytes(remoteMemory);
        here.notify(peer, text("barrier"));
        awaitNotifications(1);
        assertFails(start(Operation.WRITE, range(0, 0, 100)), Cause.REFUSED);
        assertThat(bytes(remoteMemory)).isEqualTo(remoteBefore);
    }

    @Test
    void memoryThatIsRegisteredLaterIsReached() throws TransferException {
        MemorySegment later = registered(there, POOL);
        fill(later, 15);
        assertThat(here.connect(there.metadata(), LONG)).isSameAs(peer);
        assertThat(finish(start(Operation.READ, new Range(address(mine), address(later), POOL))))
                .isInstanceOf(State.Done.class);
        assertThat(mine.mismatch(later)).isEqualTo(-1);
    }

    @Test
    void invalidMetadataIsRefused() {
        Random random = new Random(16);
        byte[] good = there.metadata();
        for (int length : new int[] {0, 1, 10, good.length / 2, good.length - 1}) {
            assertThatThrownBy(() -> here.connect(Arrays.copyOf(good, length), Duration.ofSeconds(5)))
                    .as("%d of %d bytes", length, good.length)
                    .isInstanceOf(TransferException.class);
        }
        byte[] noise = new byte[200];
        random.nextBytes(noise);
        assertThatThrownBy(() -> here.connect(noise, Duration.ofSeconds(5))).isInstanceOf(TransferException.class);
    }

    @Test
    void aPeerOfAnotherAgentIsRefused() throws TransferException {
        TransferAgent third = agent("third");
        Peer foreign = third.connect(there.metadata(), LONG);
        assertFails(
                here.start(Operation.READ, foreign, List.of(range(0, 0, 100)), Optional.empty(), LONG), Cause.REFUSED);
        assertThatThrownBy(() -> here.notify(foreign, text("hello"))).isInstanceOf(TransferException.class);
    }

    @Test
    void twoPeersDoNotMixUp() throws TransferException {
        TransferAgent third = agent("third");
        MemorySegment thirds = registered(third, POOL);
        Peer other = here.connect(third.metadata(), LONG);
        fill(remoteMemory, 17);
        fill(thirds, 18);
        Transfer one = start(Operation.READ, range(0, 0, POOL / 2));
        Transfer two = here.start(
                Operation.READ,
                other,
                List.of(new Range(address(mine) + POOL / 2, address(thirds), POOL / 2)),
                Optional.empty(),
                LONG);
        assertThat(finish(one)).isInstanceOf(State.Done.class);
        assertThat(finish(two)).isInstanceOf(State.Done.class);
        assertThat(mine.asSlice(0, POOL / 2).mismatch(remoteMemory.asSlice(0, POOL / 2)))
                .isEqualTo(-1);
        assertThat(mine.asSlice(POOL / 2).mismatch(thirds.asSlice(0, POOL / 2))).isEqualTo(-1);
        assertThat(peer.name()).isEqualTo(there.name()).isNotEqualTo(other.name());
    }

    @Test
    void bothDirectionsAtOnce() throws TransferException {
        Peer back = there.connect(here.metadata(), LONG);
        fill(mine, 19);
        fill(remoteMemory, 20);
        byte[] wereMine = slice(mine, 0, POOL / 2);
        byte[] remoteBefore = slice(remoteMemory, 0, POOL / 2);
        List<Transfer> all = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            long piece = POOL / 32;
            all.add(start(Operation.READ, range(POOL / 2 + i * piece, i * piece, piece)));
            all.add(there.start(
                    Operation.READ,
                    back,
                    List.of(new Range(address(remoteMemory) + POOL / 2 + i * piece, address(mine) + i * piece, piece)),
                    Optional.empty(),
                    LONG));
            all.add(start(Operation.WRITE, range((8 + i) * piece, POOL / 2 + (8 + i) * piece, piece)));
        }
        all.forEach(each -> assertThat(finish(each)).isInstanceOf(State.Done.class));
        assertThat(slice(mine, POOL / 2, POOL / 4)).isEqualTo(Arrays.copyOf(remoteBefore, POOL / 4));
        assertThat(slice(remoteMemory, POOL / 2, POOL / 2)).isEqualTo(wereMine);
    }

    @Test
    void aCancelledTransferEndsAndTouchesNothingAfterwards() throws TransferException {
        Pools large = large();
        for (Operation operation : Operation.values()) {
            for (int i = 0; i < 5; i++) {
                Transfer transfer = here.start(operation, peer, large.scattered(), Optional.empty(), LONG);
                transfer.cancel();
                State state = finish(transfer);
                if (state instanceof State.Failed failed) {
                    assertThat(failed.cause()).isEqualTo(Cause.CANCELLED);
                    assertThat(failed.message()).isNotEmpty();
                }
                large.mine.fill((byte) 77);
                assertThat(transfer.state()).isEqualTo(state);
                if (operation == Operation.READ) {
                    // Later writes of it would be seen.
                    assertThat(finish(start(Operation.READ, range(0, 0, 4096)))).isInstanceOf(State.Done.class);
                    assertThat(isFilledWith(large.mine, 77)).isTrue();
                }
            }
        }
    }

    @Test
    void aTransferIsOverWhenItsTimeIsUp() throws TransferException {
        Pools large = large();
        for (Operation operation : Operation.values()) {
            Transfer transfer = here.start(operation, peer, large.scattered(), Optional.empty(), Duration.ofNanos(1));
            if (finish(transfer) instanceof State.Failed failed) {
                assertThat(failed.cause()).isEqualTo(Cause.TIMEOUT);
            }
        }
        assertThat(finish(start(Operation.READ, range(0, 0, POOL)))).isInstanceOf(State.Done.class);
    }

    @Test
    void closingThePeerEndsItsTransfers() throws TransferException {
        Pools large = large();
        Transfer read = here.start(Operation.READ, peer, large.scattered(), Optional.empty(), LONG);
        peer.close();
        assertThat(finish(read)).isNotInstanceOf(State.UnderWay.class);
        assertThat(peer.alive()).isFalse();
        assertFails(start(Operation.READ, range(0, 0, 10)), Cause.PEER_GONE);
        assertThatThrownBy(() -> here.notify(peer, text("hello"))).isInstanceOf(TransferException.class);
        Peer again = here.connect(there.metadata(), LONG);
        assertThat(again).isNotSameAs(peer);
        assertThat(again.alive()).isTrue();
        assertThat(finish(here.start(Operation.READ, again, List.of(range(0, 0, POOL)), Optional.empty(), LONG)))
                .isInstanceOf(State.Done.class);
    }

    @Test
    void aPermitIsForItsMemoryAndNoOther() throws TransferException {
        MemorySegment guarded = guarded(POOL);
        // Two that touch, in the wrong order and overlapping, and one apart.
        Permit permit = permit(guarded, 3000, 2000, 1000, 2500, 9000, 1000);
        fill(mine, 31);
        assertThat(finish(write(permit.token(), guarded, 1000, 4000))).isInstanceOf(State.Done.class);
        assertThat(finish(write(permit.token(), guarded, 9000, 1000))).isInstanceOf(State.Done.class);
        assertThat(finish(write(permit.token(), guarded, 3499, 2))).isInstanceOf(State.Done.class);
        byte[] before = bytes(guarded);
        assertThat(Arrays.copyOfRange(before, 1000, 3499)).isEqualTo(slice(mine, 1000, 2499));
        assertThat(Arrays.copyOfRange(before, 9000, 10_000)).isEqualTo(slice(mine, 9000, 1000));
        fill(mine, 32);
        for (int[] outside : new int[][] {{999, 2}, {4999, 2}, {1000, 8500}, {8999, 1001}, {0, 10}, {10_000, 1}}) {
            assertFails(write(permit.token(), guarded, outside[0], outside[1]), Cause.NOT_PERMITTED);
        }
        // All of the ranges, or nothing.
        assertFails(
                here.write(
                        peer,
                        permit.token(),
                        List.of(
                                new Range(address(mine), address(guarded) + 1000, 100),
                                new Range(address(mine), address(guarded), 100)),
                        Optional.of(text("must not come")),
                        LONG),
                Cause.NOT_PERMITTED);
        assertThat(bytes(guarded)).isEqualTo(before);
        // The connection is as it was, and so are the permit's rights.
        assertThat(peer.alive()).isTrue();
        assertThat(finish(write(permit.token(), guarded, 1000, 10))).isInstanceOf(State.Done.class);
        assertThat(there.takeNotifications()).isEmpty();
        assertThat(permit.writes()).as("those that have begun").isEqualTo(4);
    }

    @Test
    void memoryThatNeedsAPermitIsReadWithoutAndWrittenToWithOneOnly() throws TransferException {
        MemorySegment guarded = guarded(POOL);
        Permit permit = permit(guarded, 0, POOL);
        TransferAgent third = agent("third");
        Permit ofAnother = third.permit(List.of(span(guarded))).orElseThrow();
        fill(guarded, 33);
        byte[] before = bytes(guarded);
        assertFails(start(Operation.WRITE, new Range(address(mine), address(guarded), 100)), Cause.NOT_PERMITTED);
        for (long wrong : new long[] {0, 1, permit.token() + 1, -permit.token(), ofAnother.token()}) {
            assertFails(write(wrong, guarded, 0, 100), Cause.NOT_PERMITTED);
        }
        assertThat(bytes(guarded)).isEqualTo(before);
        assertThat(finish(start(Operation.READ, new Range(address(mine), address(guarded), POOL))))
                .isInstanceOf(State.Done.class);
        assertThat(mine.mismatch(guarded)).isEqualTo(-1);
        assertThat(permit.token()).isNotZero().isNotEqualTo(ofAnother.token());
        // Other regions are as they were.
        assertThat(finish(start(Operation.WRITE, range(0, 0, POOL)))).isInstanceOf(State.Done.class);
    }

    @Test
    void ofTwoPermitsOneMayBeClosed() throws TransferException {
        MemorySegment guarded = guarded(POOL);
        Permit one = permit(guarded, 0, 1000);
        Permit two = permit(guarded, 500, 1000);
        assertThat(one.token()).isNotEqualTo(two.token());
        fill(mine, 34);
        assertFails(write(one.token(), guarded, 1000, 10), Cause.NOT_PERMITTED);
        assertFails(write(two.token(), guarded, 400, 10), Cause.NOT_PERMITTED);
        one.close();
        assertFails(write(one.token(), guarded, 500, 10), Cause.NOT_PERMITTED);
        assertThat(isFilledWith(guarded, 0)).isTrue();
        assertThat(finish(write(two.token(), guarded, 500, 1000))).isInstanceOf(State.Done.class);
        one.close();
        assertThat(finish(write(two.token(), guarded, 500, 1000))).isInstanceOf(State.Done.class);
        two.close();
        assertFails(write(two.token(), guarded, 500, 10), Cause.NOT_PERMITTED);
    }

    @Test
    void closingAPermitEndsItsWritesAndNothingElse() throws TransferException {
        assumeTrue(there.permit(List.of()).isPresent(), "does not apply: the agent cannot hold back its peers");
        MemorySegment source = registered(here, LARGE);
        Region region = allocate(arena, LARGE).withPermitsOnly();
        there.register(region);
        Pools large = new Pools(source, bytesOf(region));
        assertThat(here.connect(there.metadata(), LONG)).isSameAs(peer);
        for (int i = 0; i < 8; i++) {
            Permit permit = there.permit(List.of(span(large.remoteMemory))).orElseThrow();
            Permit other = there.permit(List.of(span(large.remoteMemory))).orElseThrow();
            Transfer write =
                    here.write(peer, permit.token(), large.scattered(), Optional.of(text("must not come")), LONG);
            Transfer read = start(Operation.READ, range(0, 0, POOL / 2));
            for (int steps = i; steps > 0; steps--) {
                progress();
            }
            permit.close();
            large.remoteMemory.fill((byte) 77);
            State state = finish(write);
            if (state instanceof State.Failed failed) {
                assertThat(failed.cause()).isEqualTo(Cause.NOT_PERMITTED);
                assertThat(failed.message()).contains("permit");
            }
            assertFails(
                    here.write(peer, permit.token(), large.scattered(), Optional.empty(), LONG), Cause.NOT_PERMITTED);
            assertThat(finish(read)).isInstanceOf(State.Done.class);
            assertThat(isFilledWith(large.remoteMemory, 77)).isTrue();
            assertThat(finish(write(other.token(), large.remoteMemory, 0, 100))).isInstanceOf(State.Done.class);
            awaitNotifications(state instanceof State.Done ? 1 : 0);
            assertThat(peer.alive()).isTrue();
        }
    }

    @Test
    void aPermitOutlivesConnections() throws TransferException {
        MemorySegment guarded = guarded(POOL);
        Permit permit = permit(guarded, 0, POOL);
        peer.close();
        peer = here.connect(there.metadata(), LONG);
        fill(mine, 35);
        assertThat(finish(write(permit.token(), guarded, 0, POOL))).isInstanceOf(State.Done.class);
        assertThat(guarded.mismatch(mine)).isEqualTo(-1);
    }

    @Test
    void closingTheAgentEndsItsTransfers() throws TransferException {
        Pools large = large();
        List<Transfer> all = new ArrayList<>();
        for (Operation operation : Operation.values()) {
            all.add(here.start(operation, peer, large.scattered(), Optional.empty(), LONG));
        }
        here.close();
        large.mine.fill((byte) 55);
        all.forEach(each -> assertThat(each.state()).isNotInstanceOf(State.UnderWay.class));
        assertThat(isFilledWith(large.mine, 55)).isTrue();
        here.close();
    }

    @Test
    void aPeerThatClosesIsGone() throws TransferException {
        assertThat(peer.alive()).isTrue();
        there.close();
        await("the peer's end is noticed", () -> !peer.alive());
        assertFails(start(Operation.READ, range(0, 0, 10)), Cause.PEER_GONE);
        assertThatThrownBy(() -> here.notify(peer, text("hello"))).isInstanceOf(TransferException.class);
    }

    @Test
    void anAgentThatIsOpenedAgainIsAnotherPeer() throws TransferException {
        byte[] old = there.metadata();
        there.close();
        await("the peer's end is noticed", () -> !peer.alive());
        assertThatThrownBy(() -> here.connect(old, Duration.ofSeconds(5))).isInstanceOf(TransferException.class);
        TransferAgent reborn = agent("there");
        MemorySegment memory = registered(reborn, POOL);
        fill(memory, 21);
        Peer again = here.connect(reborn.metadata(), LONG);
        assertThat(again.name()).isNotEqualTo(peer.name());
        assertThat(finish(here.start(
                        Operation.READ,
                        again,
                        List.of(new Range(address(mine), address(memory), POOL)),
                        Optional.empty(),
                        LONG)))
                .isInstanceOf(State.Done.class);
        assertThat(mine.mismatch(memory)).isEqualTo(-1);
        assertThat(peer.alive()).isFalse();
    }

    @Test
    void closingARegistrationEndsTransfersOfItsMemory() throws TransferException {
        Region region = allocate(arena, LARGE);
        Registration registration = here.register(region);
        MemorySegment source = registered(there, LARGE);
        here.connect(there.metadata(), LONG);
        for (int i = 0; i < 3; i++) {
            Transfer transfer = start(Operation.READ, new Range(address(bytesOf(region)), address(source), LARGE));
            registration.close();
            bytesOf(region).fill((byte) 99);
            State state = finish(transfer);
            assertThat(isFilledWith(bytesOf(region), 99)).isTrue();
            if (state instanceof State.Failed failed) {
                assertThat(failed.cause()).isEqualTo(Cause.REFUSED);
            }
            registration = here.register(region);
        }
    }

    // For the implementations' own tests

    /** Two large pools and ranges between them that are no neighbours. */
    protected final class Pools {
        private final MemorySegment mine;
        private final MemorySegment remoteMemory;

        private Pools(MemorySegment mine, MemorySegment remoteMemory) {
            this.mine = mine;
            this.remoteMemory = remoteMemory;
        }

        public List<Range> scattered() {
            int block = 64 << 10;
            int blocks = LARGE / block;
            List<Range> ranges = new ArrayList<>();
            for (int i = 0; i < blocks; i++) {
                ranges.add(new Range(
                        address(mine) + (long) i * block,
                        address(remoteMemory) + (long) (i * 7 % blocks) * block,
                        block));
            }
            return ranges;
        }
    }

    protected final Pools large() throws TransferException {
        Pools pools = new Pools(registered(here, LARGE), registered(there, LARGE));
        assertThat(here.connect(there.metadata(), LONG)).isSameAs(peer);
        return pools;
    }

    protected final TransferAgent agent(String prefix) throws TransferException {
        TransferAgent agent = open(prefix);
        agents.add(agent);
        return agent;
    }

    protected final MemorySegment registered(TransferAgent agent, long bytes) throws TransferException {
        Region region = allocate(arena, bytes);
        agent.register(region);
        return bytesOf(region);
    }

    /** Memory of the other agent that is written to with a permit only. */
    private MemorySegment guarded(long bytes) throws TransferException {
        Region region = allocate(arena, bytes).withPermitsOnly();
        there.register(region);
        assertThat(here.connect(there.metadata(), LONG)).isSameAs(peer);
        return bytesOf(region);
    }

    /** @param parts offset and length of each */
    private Permit permit(MemorySegment memory, long... parts) {
        List<Span> some = new ArrayList<>();
        for (int i = 0; i < parts.length; i += 2) {
            some.add(new Span(address(memory) + parts[i], parts[i + 1]));
        }
        Optional<Permit> permit = there.permit(some);
        assumeTrue(permit.isPresent(), "does not apply: the agent cannot hold back its peers");
        return permit.get();
    }

    /** From and to the same offset. */
    private Transfer write(long permit, MemorySegment to, long offset, long bytes) {
        return here.write(
                peer,
                permit,
                List.of(new Range(address(mine) + offset, address(to) + offset, bytes)),
                Optional.empty(),
                LONG);
    }

    protected final Range range(long local, long remote, long bytes) {
        return new Range(address(mine) + local, address(remoteMemory) + remote, bytes);
    }

    protected final Transfer start(Operation operation, Range range) {
        return here.start(operation, peer, List.of(range), Optional.empty(), LONG);
    }

    protected final State finish(Transfer transfer) {
        await("the transfer is over", () -> !(transfer.state() instanceof State.UnderWay));
        return transfer.state();
    }

    protected final void assertFails(Transfer transfer, Cause cause) {
        State state = finish(transfer);
        if (!(state instanceof State.Failed failed)) {
            fail("expected %s, was %s", cause, state);
            return;
        }
        assertThat(failed.cause()).as(failed.message()).isEqualTo(cause);
        assertThat(failed.message()).isNotEmpty();
    }

    protected final void await(String what, BooleanSupplier condition) {
        long deadline = System.nanoTime() + DEADLINE_NANOS;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                fail("not in time: %s", what);
            }
            progress();
        }
    }

    protected final List<Notification> awaitNotifications(int count) {
        List<Notification> all = new ArrayList<>();
        await(count + " notifications", () -> {
            all.addAll(there.takeNotifications());
            return all.size() >= count;
        });
        assertThat(all).hasSize(count);
        return all;
    }

    public static void fill(MemorySegment memory, long seed) {
        byte[] bytes = new byte[(int) memory.byteSize()];
        new Random(seed).nextBytes(bytes);
        MemorySegment.copy(bytes, 0, memory, ValueLayout.JAVA_BYTE, 0, bytes.length);
    }

    protected static byte[] bytes(MemorySegment memory) {
        return memory.toArray(ValueLayout.JAVA_BYTE);
    }

    protected static byte[] slice(MemorySegment memory, long offset, long bytes) {
        return bytes(memory.asSlice(offset, bytes));
    }

    protected static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static boolean isFilledWith(MemorySegment memory, int value) {
        return memory.get(ValueLayout.JAVA_BYTE, 0) == value
                && memory.asSlice(1).mismatch(memory.asSlice(0, memory.byteSize() - 1)) == -1;
    }
}
