package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** With OpenMP's threads, that LibTorch brings, and with threads of Java's. */
class OmpTeamTest {
    enum Kind {
        OPEN_MP,
        JAVA;

        OmpTeam team(int size, Arena arena) {
            return switch (this) {
                case OPEN_MP -> new OmpTeam(size, arena);
                case JAVA -> new OmpTeam(size, arena, Optional.empty());
            };
        }
    }

    @BeforeAll
    static void load() {
        LibTorch.load("a test", OptionalInt.empty());
    }

    @ParameterizedTest
    @EnumSource
    void doesEachPieceOnce(Kind kind) {
        try (Arena arena = Arena.ofShared()) {
            OmpTeam team = kind.team(3, arena);
            for (int count : new int[] {0, 1, 7, 8, 1000}) {
                AtomicIntegerArray done = new AtomicIntegerArray(count);
                team.parallelFor(count, 8, (_, first, end) -> {
                    for (int i = first; i < end; i++) {
                        done.incrementAndGet(i);
                    }
                });
                for (int i = 0; i < count; i++) {
                    assertThat(done.get(i)).as("%d of %d", i, count).isEqualTo(1);
                }
            }
        }
    }

    /** Each piece waits for all other pieces, which only works if each has a thread of its own. */
    @ParameterizedTest
    @EnumSource
    void allMembersWorkAtTheSameTime(Kind kind) {
        try (Arena arena = Arena.ofShared()) {
            OmpTeam team = kind.team(3, arena);
            CyclicBarrier all = new CyclicBarrier(3);
            Set<Integer> members = ConcurrentHashMap.newKeySet();
            Set<Thread> threads = ConcurrentHashMap.newKeySet();
            team.parallelFor(3, 1, (member, _, _) -> {
                members.add(member);
                threads.add(Thread.currentThread());
                await(all);
            });
            assertThat(members).containsExactlyInAnyOrder(0, 1, 2);
            assertThat(threads).hasSize(3).contains(Thread.currentThread());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aFailureOfAnyThreadIsThrownAndTheTeamGoesOn(Kind kind) {
        try (Arena arena = Arena.ofShared()) {
            OmpTeam team = kind.team(2, arena);
            for (int failing = 0; failing < 100; failing++) {
                int piece = failing;
                assertThatThrownBy(() -> team.parallelFor(100, 1, (_, first, _) -> {
                            if (first == piece) {
                                throw new OutOfMemoryError("made by the test");
                            }
                        }))
                        .isInstanceOf(IllegalStateException.class)
                        .hasRootCauseMessage("made by the test");
            }
            AtomicIntegerArray done = new AtomicIntegerArray(1);
            team.parallelFor(100, 1, (_, _, _) -> done.incrementAndGet(0));
            assertThat(done.get(0)).isEqualTo(100);
        }
    }

    @ParameterizedTest
    @EnumSource
    void piecesThatOtherThreadsHaveBegunAreAwaited(Kind kind) {
        try (Arena arena = Arena.ofShared()) {
            OmpTeam team = kind.team(4, arena);
            Thread caller = Thread.currentThread();
            for (int round = 0; round < 200; round++) {
                AtomicInteger done = new AtomicInteger();
                team.parallelFor(8, 1, (_, _, _) -> {
                    // The calling one is the first that finds nothing left.
                    LockSupport.parkNanos(Thread.currentThread().equals(caller) ? 100_000 : 1_000_000);
                    done.incrementAndGet();
                });
                assertThat(done.get()).isEqualTo(8);
            }
        }
    }

    @Test
    void itsThreadsEndWithTheArena() throws InterruptedException {
        Set<Thread> threads = ConcurrentHashMap.newKeySet();
        try (Arena arena = Arena.ofShared()) {
            CyclicBarrier all = new CyclicBarrier(3);
            new OmpTeam(3, arena, Optional.empty()).parallelFor(3, 1, (_, _, _) -> {
                threads.add(Thread.currentThread());
                await(all);
            });
        }
        threads.remove(Thread.currentThread());
        assertThat(threads).hasSize(2);
        for (Thread each : threads) {
            assertThat(each.join(Duration.ofMinutes(2))).as("ended in time").isTrue();
        }
    }

    private static void await(CyclicBarrier barrier) {
        try {
            barrier.await(120, TimeUnit.SECONDS);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
