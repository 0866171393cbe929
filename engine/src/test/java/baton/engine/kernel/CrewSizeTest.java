package baton.engine.kernel;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

class CrewSizeTest {
    private static final long MILLI = 1_000_000;
    /** Between two loops. */
    private static final long STEP = MILLI / 10;

    private long now = 1_000_000_000;
    private long delay;

    /** Loops for so long, in which the calling thread waits for a processor for a share of the time; the size after them. */
    private int loops(CrewSize crew, long millis, double share) {
        int size = 0;
        for (long end = now + millis * MILLI; now < end; now += STEP) {
            size = crew.at(now);
            delay += (long) (share * STEP);
        }
        return size;
    }

    @Test
    void allThreadsTakePartWhereTheyHaveProcessors() {
        CrewSize crew = new CrewSize(4, () -> delay);
        assertThat(loops(crew, 100, 0.1)).isEqualTo(4);
    }

    @Test
    void threadsAreLeftOutWhileTheCallingOneHasToWaitAndComeBackAfterwards() {
        CrewSize crew = new CrewSize(4, () -> delay);
        assertThat(loops(crew, 200, 0.5)).isLessThan(4);
        assertThat(loops(crew, 2_000, 0)).isEqualTo(4);
    }

    @Test
    void aWorkerWithoutAProcessorCountsLikeTheCallingThread() {
        CrewSize crew = new CrewSize(2, () -> 0);
        int size = 2;
        for (int window = 0; window < 10 && size == 2; window++) {
            crew.waited(3 * MILLI);
            size = loops(crew, 4, 0);
        }
        assertThat(size).isEqualTo(1);
    }

    @Test
    void oneLongWaitLeavesNoThreadOut() {
        CrewSize crew = new CrewSize(2, () -> delay);
        for (int i = 0; i < 50; i++) {
            delay += 3 * MILLI;
            assertThat(loops(crew, 20, 0)).isEqualTo(2);
        }
    }

    @Test
    void shortWaitsForTheLastPieceAreUsual() {
        CrewSize crew = new CrewSize(2, () -> 0);
        for (int i = 0; i < 2_000; i++) {
            crew.waited(STEP / 3);
            assertThat(loops(crew, 1, 0)).isEqualTo(2);
        }
    }

    /** With processors for three threads of eight, most loops have two to five. */
    @Test
    void theSizeFollowsTheProcessors() {
        CrewSize crew = new CrewSize(8, () -> delay);
        int sum = 0;
        int count = 0;
        for (int i = 0; i < 40_000; i++) {
            int size = crew.at(now);
            now += STEP;
            delay += size > 3 ? STEP * (size - 3) / size : 0;
            if (i >= 20_000) {
                sum += size;
                count++;
            }
        }
        assertThat((double) sum / count).isBetween(2.0, 5.0);
    }

    /** The threads are tried more and more seldom: each attempt costs two windows. */
    @Test
    void attemptsGetRareWhileTheyFail() {
        CrewSize crew = new CrewSize(2, () -> delay);
        int both = 0;
        int all = 0;
        for (int i = 0; i < 100_000; i++) {
            int size = crew.at(now);
            now += STEP;
            delay += size > 1 ? STEP / 2 : 0;
            both += size > 1 ? 1 : 0;
            all++;
        }
        assertThat((double) both / all).isLessThan(0.1);
    }

    @Test
    void aThreadWithoutLoopsIsNotTakenForOneThatWaits() {
        CrewSize crew = new CrewSize(2, () -> delay);
        for (int i = 0; i < 10; i++) {
            // Waits of other work of the thread, between its loops.
            delay += 30 * MILLI;
            now += 100 * MILLI;
            assertThat(crew.at(now)).isEqualTo(2);
        }
    }
}
