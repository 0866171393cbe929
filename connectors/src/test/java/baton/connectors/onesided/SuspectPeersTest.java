package baton.connectors.onesided;

import static org.assertj.core.api.Assertions.assertThat;

import baton.testkit.FakeKvRequest;
import org.junit.jupiter.api.Test;

class SuspectPeersTest {
    private final SuspectPeers suspects = new SuspectPeers();
    private final FakeKvRequest request = new FakeKvRequest("r", FakeKvRequest.counting(1, 4), 4);

    @Test
    void aPeerIsLeftOutAfterSeveralWrongLoadsUntilTheLastIsLongPast() {
        for (int i = 0; i < SuspectPeers.WRONG_LOADS; i++) {
            assertThat(suspects.contains("a", request, i)).isFalse();
            suspects.add("a", request, i);
        }
        long last = SuspectPeers.WRONG_LOADS - 1;
        assertThat(suspects.contains("a", request, last)).isTrue();
        assertThat(suspects.contains("b", request, last)).isFalse();
        assertThat(suspects.contains("a", request, last + SuspectPeers.SPAN.toNanos()))
                .isTrue();
        assertThat(suspects.contains("a", request, last + SuspectPeers.SPAN.toNanos() + 1))
                .isFalse();
    }

    @Test
    void wrongLoadsOfOneSaltDoNotCountForOthers() {
        for (int i = 0; i < SuspectPeers.WRONG_LOADS; i++) {
            suspects.add("a", request.withCacheSalt("tenant"), i);
        }
        assertThat(suspects.contains("a", request.withCacheSalt("tenant"), SuspectPeers.WRONG_LOADS))
                .isTrue();
        assertThat(suspects.contains("a", request.withCacheSalt("other"), SuspectPeers.WRONG_LOADS))
                .isFalse();
        assertThat(suspects.contains("a", request, SuspectPeers.WRONG_LOADS)).isFalse();
    }

    @Test
    void theOldestSuspicionMakesRoomForANewOne() {
        for (int i = 0; i < SuspectPeers.WRONG_LOADS; i++) {
            suspects.add("a", request.withCacheSalt("oldest"), i);
        }
        for (int i = 0; i < SuspectPeers.MOST; i++) {
            suspects.add("a", request.withCacheSalt("salt " + i), 10 + i);
        }
        long now = 10 + SuspectPeers.MOST;
        for (int i = 0; i < SuspectPeers.WRONG_LOADS; i++) {
            suspects.add("a", request.withCacheSalt("newest"), now);
        }
        assertThat(suspects.contains("a", request.withCacheSalt("newest"), now)).isTrue();
        assertThat(suspects.contains("a", request.withCacheSalt("oldest"), now)).isFalse();
    }

    @Test
    void wrongLoadsThatAreFarApartDoNotAddUp() {
        for (int i = 0; i < 2 * SuspectPeers.WRONG_LOADS; i++) {
            long now = i * (SuspectPeers.SPAN.toNanos() + 1);
            suspects.add("a", request, now);
            assertThat(suspects.contains("a", request, now)).isFalse();
        }
    }
}
