package baton.connectors.onesided;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

class SuspectPeersTest {
    private final SuspectPeers suspects = new SuspectPeers();

    @Test
    void aPeerIsLeftOutAfterSeveralWrongLoadsUntilTheLastIsLongPast() {
        for (int i = 0; i < SuspectPeers.WRONG_LOADS; i++) {
            assertThat(suspects.contains("a", i)).isFalse();
            suspects.add("a", i);
        }
        long last = SuspectPeers.WRONG_LOADS - 1;
        assertThat(suspects.contains("a", last)).isTrue();
        assertThat(suspects.contains("b", last)).isFalse();
        assertThat(suspects.contains("a", last + SuspectPeers.SPAN.toNanos())).isTrue();
        assertThat(suspects.contains("a", last + SuspectPeers.SPAN.toNanos() + 1))
                .isFalse();
    }

    @Test
    void wrongLoadsThatAreFarApartDoNotAddUp() {
        for (int i = 0; i < 2 * SuspectPeers.WRONG_LOADS; i++) {
            long now = i * (SuspectPeers.SPAN.toNanos() + 1);
            suspects.add("a", now);
            assertThat(suspects.contains("a", now)).isFalse();
        }
    }
}
