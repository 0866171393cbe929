package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** With OpenMP's threads, that LibTorch brings. */
class TeamTest {
    @BeforeAll
    static void load() {
        LibTorch.load(OptionalInt.empty());
    }

    @Test
    void doesEachPieceOnce() {
        try (Arena arena = Arena.ofShared()) {
            Team team = new Team(3, arena);
            for (int count : new int[] {0, 1, 7, 8, 1000}) {
                AtomicIntegerArray done = new AtomicIntegerArray(count);
                team.share(count, 8, (_, first, end) -> {
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

    /** Each waits for all others, which only threads of their own can end. */
    @Test
    void allMembersWorkAtTheSameTime() {
        try (Arena arena = Arena.ofShared()) {
            Team team = new Team(3, arena);
            CyclicBarrier all = new CyclicBarrier(3);
            Set<Integer> members = ConcurrentHashMap.newKeySet();
            Set<Thread> threads = ConcurrentHashMap.newKeySet();
            team.share(3, 1, (member, _, _) -> {
                members.add(member);
                threads.add(Thread.currentThread());
                try {
                    all.await(30, TimeUnit.SECONDS);
                } catch (Exception e) {
                    throw new IllegalStateException(e);
                }
            });
            assertThat(members).containsExactlyInAnyOrder(0, 1, 2);
            assertThat(threads).hasSize(3).contains(Thread.currentThread());
        }
    }

    @Test
    void aFailureOfAnyThreadIsThrownAndTheTeamGoesOn() {
        try (Arena arena = Arena.ofShared()) {
            Team team = new Team(2, arena);
            for (int failing = 0; failing < 100; failing++) {
                int piece = failing;
                assertThatThrownBy(() -> team.share(100, 1, (_, first, _) -> {
                            if (first == piece) {
                                throw new OutOfMemoryError("made by the test");
                            }
                        }))
                        .isInstanceOf(IllegalStateException.class)
                        .hasRootCauseMessage("made by the test");
            }
            AtomicIntegerArray done = new AtomicIntegerArray(1);
            team.share(100, 1, (_, _, _) -> done.incrementAndGet(0));
            assertThat(done.get(0)).isEqualTo(100);
        }
    }
}
