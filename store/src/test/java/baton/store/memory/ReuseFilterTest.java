package baton.store.memory;

import static baton.store.memory.ArcPolicyTest.keys;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import org.junit.jupiter.api.Test;

class ReuseFilterTest {
    @Test
    void aKeyIsLetThroughFromTheThresholdOn() {
        ReuseFilter filter = new ReuseFilter(2, 100);
        assertThat(filter.offer(keys(1, 2))).isEmpty();
        assertThat(filter.offer(keys(2, 3))).isEqualTo(keys(2));
        assertThat(filter.offer(keys(1, 2, 3, 4))).isEqualTo(keys(1, 2, 3));
        assertThat(filter.takeSkipped()).isEqualTo(4);
        assertThat(filter.takeSkipped()).isZero();
    }

    @Test
    void aThresholdBelowTwoLetsEverythingThrough() {
        for (int threshold : new int[] {0, 1}) {
            ReuseFilter filter = new ReuseFilter(threshold, 1);
            assertThat(filter.offer(keys(1, 2, 3))).isEqualTo(keys(1, 2, 3));
            assertThat(filter.takeSkipped()).isZero();
        }
    }

    @Test
    void keysThatWereNotOfferedForTheLongestTimeAreForgotten() {
        ReuseFilter filter = new ReuseFilter(2, 3);
        filter.offer(keys(1, 2, 3));
        filter.offer(keys(1));
        filter.offer(keys(4));
        assertThat(filter.offer(keys(2))).as("4 took its place").isEmpty();
        assertThat(filter.offer(keys(1))).isEqualTo(keys(1));
    }

    @Test
    void keysOfOneOfferDoNotDriveEachOtherOut() {
        ReuseFilter filter = new ReuseFilter(2, 2);
        filter.offer(keys(1, 2));
        assertThat(filter.offer(keys(3, 4, 5, 1, 2))).isEqualTo(keys(1, 2));
        assertThat(filter.offer(keys(1, 2))).isEqualTo(keys(1, 2));
    }

    @Test
    void invalidNumbersAreRefused() {
        assertThatThrownBy(() -> new ReuseFilter(-1, 1)).hasMessageContaining("threshold=-1");
        assertThatThrownBy(() -> new ReuseFilter(2, 0)).hasMessageContaining("mostTracked=0");
    }
}
