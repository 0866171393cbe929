package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.memory.Populating.Times;
import org.junit.jupiter.api.Test;

class PopulatingTest {
    private static final long MILLI = 1_000_000;
    private static final Times START = new Times(50 * MILLI, 7 * MILLI, 90 * MILLI);

    /** After three milliseconds, of which the thread slept one. */
    private static boolean isCrowded(long own, long process, int processors) {
        Times now = new Times(START.clock() + 3 * MILLI, START.own() + own, START.process() + process);
        return now.isCrowded(START, MILLI, processors);
    }

    @Test
    void aProcessorIsFreeWhileTheProcessUsesFewOfThem() {
        assertThat(isCrowded(2 * MILLI, 2 * MILLI, 1)).isFalse();
        assertThat(isCrowded(2 * MILLI, 3 * MILLI, 1)).isTrue();
        assertThat(isCrowded(2 * MILLI, 2 * MILLI, 2)).isFalse();
        assertThat(isCrowded(2 * MILLI, 5 * MILLI, 2)).isTrue();
        assertThat(isCrowded(2 * MILLI, 5 * MILLI, 3)).isFalse();
        assertThat(isCrowded(2 * MILLI, 2 * MILLI + 2 * 3 * MILLI, 3)).isTrue();
    }

    @Test
    void noProcessorIsFreeIfTheThreadHadToWaitForOne() {
        assertThat(isCrowded(MILLI, MILLI, 64)).isTrue();
    }

    @Test
    void timesOfAThreadAreAPartOfTheProcess() {
        assumeTrue(Platform.current().isLinux(), "this is not Linux, which has clocks of CPU time");
        Times before = Times.now();
        long sum = 0;
        while (Times.now().own() - before.own() < 10 * MILLI) {
            sum += System.nanoTime();
        }
        Times now = Times.now();
        assertThat(sum).isNotZero();
        assertThat(now.process() - before.process()).isGreaterThan(9 * MILLI);
        assertThat(now.clock() - before.clock()).isGreaterThan(9 * MILLI);
    }
}
