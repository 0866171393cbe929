package baton.pipe;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;

class BuddyPoolTest {
    @Test
    void piecesArePowersOfTwoAndAreMergedAgain() {
        try (BuddyPool pool = new BuddyPool(4096)) {
            BuddyPool.Piece small = pool.allocate(1).orElseThrow();
            BuddyPool.Piece odd = pool.allocate(513).orElseThrow();
            assertThat(pool.used()).isEqualTo(512 + 1024);
            assertThat(small.memory().byteSize()).isEqualTo(1);
            assertThat(pool.allocate(2049)).as("half is in pieces").isEmpty();
            pool.checkInvariants();

            small.close();
            small.close();
            odd.close();
            pool.checkInvariants();
            assertThat(pool.used()).isZero();
            try (BuddyPool.Piece whole = pool.allocate(4096).orElseThrow()) {
                assertThat(whole.memory().byteSize()).isEqualTo(4096);
                assertThat(pool.allocate(0)).isEmpty();
            }
        }
    }

    @Test
    void memoryIsAllocatedOnDemandAndNeverAboveTheCapacity() {
        try (BuddyPool pool = new BuddyPool(1L << 40)) {
            assertThat(pool.reserved()).isZero();
            pool.allocate(1000).orElseThrow().close();
            assertThat(pool.reserved()).isEqualTo(64 << 20);
            BuddyPool.Piece large = pool.allocate(65 << 20).orElseThrow();
            assertThat(pool.reserved()).isEqualTo(192 << 20);
            large.close();
            assertThat(pool.reserved()).isEqualTo(64 << 20);
            assertThat(pool.allocate(Long.MAX_VALUE)).isEmpty();
        }
        try (BuddyPool pool = new BuddyPool(3000)) {
            assertThat(pool.allocate(2049)).isEmpty();
            List<BuddyPool.Piece> pieces = new ArrayList<>();
            for (Optional<BuddyPool.Piece> piece = pool.allocate(512); piece.isPresent(); piece = pool.allocate(512)) {
                pieces.add(piece.get());
            }
            assertThat(pieces).hasSize(5);
            assertThat(pool.reserved()).isLessThanOrEqualTo(3000);
        }
    }

    @Test
    void aPreparedPoolHasItsFirstRootBeforeAPieceIsAskedFor() {
        try (BuddyPool pool = new BuddyPool(1L << 40)) {
            pool.prepare(Optional.empty());
            pool.prepare(Optional.empty());
            assertThat(pool.reserved()).isEqualTo(64 << 20);
            pool.checkInvariants();
            pool.allocate(1 << 20).orElseThrow().close();
            assertThat(pool.reserved()).isEqualTo(64 << 20);
        }
        try (BuddyPool small = new BuddyPool(3000)) {
            small.prepare(Optional.empty());
            small.checkInvariants();
            assertThat(small.allocate(2048)).isPresent();
        }
        BuddyPool closed = new BuddyPool(4096);
        closed.close();
        closed.prepare(Optional.empty());
        assertThat(closed.reserved()).isZero();
    }

    @Test
    void freeRootsMakeRoomForALargerOne() {
        try (BuddyPool pool = new BuddyPool(256L << 20)) {
            List<BuddyPool.Piece> pieces = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                pieces.add(pool.allocate(64 << 20).orElseThrow());
            }
            pieces.forEach(BuddyPool.Piece::close);
            pool.checkInvariants();
            try (BuddyPool.Piece large = pool.allocate(200 << 20).orElseThrow()) {
                pool.checkInvariants();
                assertThat(large.memory().byteSize()).isEqualTo(200 << 20);
            }
        }
    }

    /** No two pieces share a byte, and the books are right after every step. */
    @Test
    void anyOrderOfAllocatingAndFreeingKeepsTheInvariants() {
        long seed = Long.getLong("tests.seed", new Random().nextLong());
        System.out.println("BuddyPoolTest: -Dtests.seed=" + seed);
        Random random = new Random(seed);
        record Held(BuddyPool.Piece piece, long mark) {}
        try (BuddyPool pool = new BuddyPool(1 << 20)) {
            List<Held> held = new ArrayList<>();
            for (int i = 0; i < 20_000; i++) {
                if (held.isEmpty() || random.nextInt(5) > 1) {
                    long bytes = 16 + random.nextLong(1L << random.nextInt(4, 18));
                    Optional<BuddyPool.Piece> piece = pool.allocate(bytes);
                    if (piece.isPresent()) {
                        mark(piece.get().memory().host(), i);
                        held.add(new Held(piece.get(), i));
                    }
                } else {
                    Held gone = held.remove(random.nextInt(held.size()));
                    assertThat(marks(gone.piece.memory().host())).containsExactly(gone.mark, gone.mark);
                    gone.piece.close();
                }
                pool.checkInvariants();
            }
            held.forEach(each -> each.piece.close());
            pool.checkInvariants();
            assertThat(pool.used()).isZero();
        }
    }

    private static void mark(MemorySegment memory, long mark) {
        memory.set(ValueLayout.JAVA_LONG_UNALIGNED, 0, mark);
        memory.set(ValueLayout.JAVA_LONG_UNALIGNED, memory.byteSize() - 8, mark);
    }

    private static long[] marks(MemorySegment memory) {
        return new long[] {
            memory.get(ValueLayout.JAVA_LONG_UNALIGNED, 0),
            memory.get(ValueLayout.JAVA_LONG_UNALIGNED, memory.byteSize() - 8)
        };
    }
}
