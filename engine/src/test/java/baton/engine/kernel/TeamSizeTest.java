package baton.engine.kernel;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

class TeamSizeTest {
    private static final long MILLI = 1_000_000;
    /** Between two loops. */
    private static final long STEP = MILLI / 10;

    private long now = 1_000_000_000;
    private long delay;

    /** Loops for so long, in which the calling thread waits for a processor for a share of the time; the size after them. */
    private int loops(TeamSize team, long millis, double share) {
        int size = 0;
        for (long end = now + millis * MILLI; now < end; now += STEP) {
            size = team.at(now);
            delay += (long) (share * STEP);
        }
        return size;
    }

    @Test
    void allThreadsTakePartWhereTheyHaveProcessors() {
        TeamSize team = new TeamSize(4, () -> delay);
        assertThat(loops(team, 100, 0.1)).isEqualTo(4);
    }

    @Test
    void threadsAreLeftOutWhileTheCallingOneHasToWaitAndComeBackAfterwards() {
        TeamSize team = new TeamSize(4, () -> delay);
        assertThat(loops(team, 200, 0.5)).isLessThan(4);
        assertThat(loops(team, 2_000, 0)).isEqualTo(4);
    }

    @Test
    void aWorkerWithoutAProcessorCountsLikeTheCallingThread() {
        TeamSize team = new TeamSize(2, () -> 0);
        int size = 2;
        for (int window = 0; window < 10 && size == 2; window++) {
            team.waited(3 * MILLI);
            size = loops(team, 4, 0);
        }
        assertThat(size).isEqualTo(1);
    }

    @Test
    void oneLongWaitLeavesNoThreadOut() {
        TeamSize team = new TeamSize(2, () -> delay);
        for (int i = 0; i < 50; i++) {
            delay += 3 * MILLI;
            for (int milli = 0; milli < 20; milli++) {
                assertThat(loops(team, 1, 0)).isEqualTo(2);
            }
        }
    }

    /** As of a thread with a tenth of a processor, that of the JVM's compilers, once of the caller's and once of the worker's. */
    @Test
    void aSchedulersSlicesNowAndThenLeaveNoThreadOut() {
        TeamSize team = new TeamSize(2, () -> delay);
        for (int i = 0; i < 50; i++) {
            delay += 3 * MILLI;
            assertThat(loops(team, 4, 0)).isEqualTo(2);
            team.waited(3 * MILLI);
            assertThat(loops(team, 24, 0)).isEqualTo(2);
        }
    }

    /** Two short ones that follow each other when a thread has just come back. */
    @Test
    void slicesNowAndThenDoNotEndAnAttempt() {
        TeamSize team = new TeamSize(2, () -> delay);
        assertThat(loops(team, 100, 0.5)).isEqualTo(1);
        while (team.at(now) == 1) {
            now += STEP;
        }
        for (int i = 0; i < 20; i++) {
            for (int slice = 0; slice < 2; slice++) {
                delay += 2 * MILLI;
                assertThat(loops(team, 4, 0)).isEqualTo(2);
            }
            assertThat(loops(team, 16, 0)).isEqualTo(2);
        }
    }

    /** A third of the time, but of each loop no more than a piece takes. */
    @Test
    void shortWaitsForTheLastPieceAreUsual() {
        TeamSize team = new TeamSize(2, () -> 0);
        for (int i = 0; i < 2_000; i++) {
            assertThat(team.at(now)).isEqualTo(2);
            team.waited(STEP / 3);
            now += STEP;
        }
    }

    @Test
    void theSizeFollowsTheProcessors() {
        assertThat(meanSize(8, 3)).isBetween(2.0, 5.0);
    }

    /** Each attempt with both costs two windows. */
    @Test
    void attemptsGetRareWhileTheyFail() {
        assertThat(meanSize(2, 1)).isGreaterThan(1).isLessThan(1.1);
    }

    /** The mean size in the second half of loops by {@code threads} threads that share {@code processors} processors evenly. */
    private double meanSize(int threads, int processors) {
        TeamSize team = new TeamSize(threads, () -> delay);
        int loops = 40_000;
        long sum = 0;
        for (int i = 0; i < loops; i++) {
            int size = team.at(now);
            now += STEP;
            delay += STEP * Math.max(0, size - processors) / size;
            sum += i < loops / 2 ? 0 : size;
        }
        return sum / (loops / 2.0);
    }

    @Test
    void aThreadWithoutLoopsIsNotTakenForOneThatWaits() {
        TeamSize team = new TeamSize(2, () -> delay);
        for (int i = 0; i < 10; i++) {
            // Waits of other work of the thread, between its loops.
            delay += 30 * MILLI;
            now += 100 * MILLI;
            assertThat(team.at(now)).isEqualTo(2);
        }
    }
}
