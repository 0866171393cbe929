package baton.engine.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.Ticker;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(300)
class ThreadTeamTest {
    @Test
    void everyIterationIsDoneOnceInManyShortLoops() {
        try (ThreadTeam team = new ThreadTeam(3)) {
            for (int loop = 0; loop < 5000; loop++) {
                int count = loop % 37;
                AtomicIntegerArray done = new AtomicIntegerArray(count);
                team.parallelFor(count, 1 + loop % 4, (_, first, end) -> {
                    for (int i = first; i < end; i++) {
                        done.incrementAndGet(i);
                    }
                });
                for (int i = 0; i < count; i++) {
                    assertThat(done.get(i)).as("loop %d iteration %d", loop, i).isEqualTo(1);
                }
            }
        }
    }

    @Test
    void piecesAreDoneByThreadsWithNumbersOfTheirOwn() {
        Set<Integer> members = Collections.synchronizedSet(new HashSet<>());
        Set<Thread> threads = Collections.synchronizedSet(new HashSet<>());
        CountDownLatch both = new CountDownLatch(2);
        try (ThreadTeam team = complete(2)) {
            team.parallelFor(2, 1, (member, _, _) -> {
                members.add(member);
                threads.add(Thread.currentThread());
                both.countDown();
                await(both);
            });
        }
        assertThat(members).containsExactlyInAnyOrder(0, 1);
        assertThat(threads).hasSize(2).contains(Thread.currentThread());
    }

    @Test
    void aThreadDoesConsecutivePiecesAndThenTheRestOfTheOtherPart() {
        List<String> done = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch both = new CountDownLatch(2);
        CountDownLatch rest = new CountDownLatch(5);
        try (ThreadTeam team = complete(2)) {
            team.parallelFor(6, 1, (member, first, _) -> {
                both.countDown();
                await(both);
                if (member == 1) {
                    // The calling thread does all other pieces meanwhile.
                    await(rest);
                }
                done.add("%d by %d".formatted(first, member));
                rest.countDown();
            });
        }
        assertThat(done).containsExactly("0 by 0", "1 by 0", "2 by 0", "4 by 0", "5 by 0", "3 by 1");
    }

    /** A worker that sleeps is woken: each loop ends only if both threads take part. */
    @Test
    void workersThatSleepAreWoken() {
        try (ThreadTeam team = complete(2)) {
            for (int loop = 0; loop < 20; loop++) {
                CountDownLatch both = new CountDownLatch(2);
                team.parallelFor(2, 1, (_, _, _) -> {
                    both.countDown();
                    await(both);
                });
                awaitSleep();
            }
        }
    }

    @Test
    void workersThatAreLeftOutDoNotTakePartUntilTheyAreWanted() {
        AtomicLong lost = new AtomicLong();
        AtomicLong clock = new AtomicLong();
        try (ThreadTeam team = new ThreadTeam(3, new TeamSize(3, lost::get), clock::get)) {
            for (int round = 0; round < 100; round++) {
                clock.addAndGet(1_000_000_000);
                assertThat(membersOf(team, 3)).containsExactlyInAnyOrder(0, 1, 2);
                for (int window = 0; window < 2; window++) {
                    clock.addAndGet(20_000_000);
                    lost.addAndGet(12_000_000);
                    team.parallelFor(2, 1, (_, _, _) -> {});
                }
                assertThat(membersOf(team, 2)).containsExactlyInAnyOrder(0, 1);
                assertThat(team.members()).isEqualTo(2);
            }
        }
    }

    @Test
    void waitingForALastPieceTellsOfALostProcessorWhereTheLoopsPiecesAreEven() {
        AtomicLong clock = new AtomicLong();
        AtomicLong asked = new AtomicLong();
        Ticker ticker = () -> {
            long now = clock.get();
            asked.incrementAndGet();
            return now;
        };
        try (ThreadTeam uneven = new ThreadTeam(2, new TeamSize(2, () -> 0), ticker);
                ThreadTeam even = new ThreadTeam(2, new TeamSize(2, () -> 0), ticker)) {
            waitForWorkers(uneven.forUnevenPieces(), clock, asked);
            assertThat(uneven.members()).isEqualTo(2);
            waitForWorkers(even, clock, asked);
            assertThat(even.members()).isEqualTo(1);
        }
    }

    /** Two windows in which the calling thread does nothing but wait for the other one, and a loop that begins behind them. */
    private static void waitForWorkers(ParallelFor threads, AtomicLong clock, AtomicLong asked) {
        for (int window = 0; window < 2; window++) {
            long waits = asked.get() + 2;
            CountDownLatch both = new CountDownLatch(2);
            threads.parallelFor(2, 1, (member, _, _) -> {
                both.countDown();
                await(both);
                if (member > 0) {
                    while (asked.get() < waits) {
                        Thread.onSpinWait();
                    }
                    clock.addAndGet(20_000_000);
                }
            });
        }
        threads.parallelFor(2, 1, (_, _, _) -> {});
    }

    /** Runs a loop of as many pieces as it has threads, which ends only if each computes one. */
    private static Set<Integer> membersOf(ThreadTeam team, int size) {
        Set<Integer> members = Collections.synchronizedSet(new HashSet<>());
        CountDownLatch all = new CountDownLatch(size);
        team.parallelFor(size, 1, (member, _, _) -> {
            members.add(member);
            all.countDown();
            await(all);
        });
        return members;
    }

    @Test
    void aPieceThatFailsFailsTheLoopAndTheNextOneWorks() {
        try (ThreadTeam team = new ThreadTeam(2)) {
            assertThatThrownBy(() -> team.parallelFor(100, 1, (_, first, _) -> {
                        if (first == 60) {
                            throw new IllegalArgumentException("piece 60");
                        }
                    }))
                    .isInstanceOf(IllegalStateException.class)
                    .hasRootCauseMessage("piece 60");
            AtomicIntegerArray done = new AtomicIntegerArray(1);
            team.parallelFor(50, 1, (_, _, _) -> done.incrementAndGet(0));
            assertThat(done.get(0)).isEqualTo(50);
        }
    }

    @Test
    void closingEndsTheWorkers() throws InterruptedException {
        Set<Thread> threads = Collections.synchronizedSet(new HashSet<>());
        ThreadTeam team = complete(2);
        CountDownLatch both = new CountDownLatch(2);
        team.parallelFor(2, 1, (_, _, _) -> {
            threads.add(Thread.currentThread());
            both.countDown();
            await(both);
        });
        team.close();
        for (Thread thread : threads) {
            if (!thread.equals(Thread.currentThread())) {
                assertThat(thread.join(Duration.ofMinutes(2))).isTrue();
            }
        }
    }

    /** All of its threads take part in each loop, whatever else this machine does. */
    private static ThreadTeam complete(int size) {
        // Its clock stands still, so no time is lost.
        return new ThreadTeam(size, new TeamSize(size, () -> 0), () -> 0);
    }

    private static void await(CountDownLatch latch) {
        try {
            assertThat(latch.await(120, TimeUnit.SECONDS)).isTrue();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Until a worker waits for work, which it does within a moment. */
    private static void awaitSleep() {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
        while (Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().startsWith("kernel-"))
                .noneMatch(thread -> thread.getState() == Thread.State.WAITING)) {
            assertThat(System.nanoTime()).isLessThan(deadline);
            Thread.onSpinWait();
        }
    }
}
