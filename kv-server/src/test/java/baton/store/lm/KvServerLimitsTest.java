package baton.store.lm;

import static baton.store.remote.StoredValues.until;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import java.net.InetAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** Bounds: memory, connections, time. {@code -Dtests.connections=N} for another number of clients that misbehave. */
class KvServerLimitsTest {
    private static final int CLIENTS = Integer.getInteger("tests.connections", 300);

    private static final Duration SHORT = Duration.ofSeconds(1);

    private final Random random = new Random(13);

    private static KvServerSettings settings(long memory, Duration timeout) {
        KvServerSettings plain = KvServerSettings.of(0, memory);
        return plain.withLimits(new KvServerSettings.Limits(
                CLIENTS + 100,
                plain.limits().valueBytes(),
                timeout,
                plain.limits().leastRate()));
    }

    private byte[] value(int bytes) {
        byte[] value = new byte[bytes];
        random.nextBytes(value);
        return value;
    }

    private static long metric(KvServer server, String name) {
        Matcher matcher = Pattern.compile("^baton:kv_server_" + Pattern.quote(name) + " (\\d+)$", Pattern.MULTILINE)
                .matcher(server.metrics());
        assertThat(matcher.find()).as(name).isTrue();
        return Long.parseLong(matcher.group(1));
    }

    @Test
    void theLeastRecentlyReadValuesGoWhenMemoryIsFull() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 4 << 20));
                RawLm client = new RawLm(server.port())) {
            byte[] first = value(500_000);
            client.put("k0", first);
            client.put("k1", value(500_000));
            for (int i = 2; i < 40; i++) {
                assertThat(client.get("k0")).as("after " + i).isEqualTo(first);
                client.put("k" + i, value(100_000 + random.nextInt(800_000)));
                assertThat(client.exists("k" + i)).isTrue();
                assertThat(metric(server, "memory_used_bytes")).isLessThanOrEqualTo(4 << 20);
            }
            assertThat(client.exists("k1")).isFalse();
            assertThat(client.exists("k5")).isFalse();
            assertThat(metric(server, "evictions_total{to=\"nowhere\"}")).isGreaterThan(20);
        }
    }

    @Test
    void memoryIsWholeAgainAfterManyValuesOfManySizes() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 4 << 20));
                RawLm client = new RawLm(server.port())) {
            for (int i = 0; i < 2000; i++) {
                client.put("k" + i % 300, value(random.nextInt(60_000)));
            }
            byte[] large = value(1 << 20);
            client.put("large", large);
            assertThat(client.get("large")).isEqualTo(large);
            for (int i = 0; i < 300; i++) {
                client.put("k" + i, new byte[0]);
            }
            client.put("large", new byte[0]);
            assertThat(client.exists("large")).isTrue();
            assertThat(metric(server, "memory_used_bytes")).isZero();
        }
    }

    /** Reads no byte of a requested value, while the value is replaced and its memory is wanted for others. */
    @Test
    void aValueThatIsBeingSentKeepsItsBytes() throws Exception {
        try (KvServer server = KvServer.start(settings(64 << 20, Duration.ofSeconds(20)));
                RawLm slow = new RawLm(server.port(), 4096);
                RawLm client = new RawLm(server.port())) {
            byte[] value = value(15 << 20);
            client.put("a", value);
            assertThat(client.exists("a")).isTrue();
            slow.send(RawLm.request(LmWire.GET, "a"));
            assertThat(slow.reply()[1]).isEqualTo(value.length);
            client.put("a", new byte[] {1});
            for (int i = 0; i < 30; i++) {
                client.put("k" + i, value(8 << 20));
            }
            assertThat(client.exists("k29")).isTrue();
            assertThat(client.get("a"))
                    .satisfiesAnyOf(
                            got -> assertThat(got).isEmpty(),
                            got -> assertThat(got).containsExactly(1));
            assertThat(slow.bytes(value.length)).isEqualTo(value);
        }
    }

    @Test
    void garbageHalfRequestsAndSlowReadersDoNotStopOthersAndAreEnded() throws Exception {
        List<RawLm> bad = new ArrayList<>();
        try (KvServer server = KvServer.start(settings(32 << 20, SHORT));
                RawLm client = new RawLm(server.port())) {
            byte[] value = value(6 << 20);
            byte[] small = value(100);
            client.put("large", value);
            client.put("small", small);
            assertThat(client.exists("large")).isTrue();
            for (int i = 0; i < CLIENTS; i++) {
                RawLm next = new RawLm(server.port(), 4096);
                bad.add(next);
                switch (i % 4) {
                    case 0 -> next.send(value(200));
                    case 1 -> next.send(java.util.Arrays.copyOf(RawLm.request(LmWire.GET, "large"), 100));
                    case 2 -> next.send(RawLm.request(LmWire.PUT, "half" + i, 4 << 20, 5, 6), value(70_000));
                    default -> next.send(RawLm.request(LmWire.GET, "large"), RawLm.request(LmWire.GET, "large"));
                }
                if (i % 50 == 0) {
                    assertThat(client.get("small")).isEqualTo(small);
                    assertThat(metric(server, "memory_used_bytes")).isLessThanOrEqualTo(32 << 20);
                }
            }
            until("all are ended", () -> metric(server, "connections") == 1);
            int each = CLIENTS / 4;
            assertThat(metric(server, "closed_connections_total{cause=\"garbage\"}"))
                    .isGreaterThanOrEqualTo(each);
            assertThat(metric(server, "closed_connections_total{cause=\"half_request\"}"))
                    .isGreaterThanOrEqualTo(2L * each);
            assertThat(metric(server, "closed_connections_total{cause=\"slow_reader\"}"))
                    .isGreaterThanOrEqualTo(each);
            assertThat(client.get("small")).isEqualTo(small);
            byte[] again = value(7 << 20);
            client.put("again", again);
            assertThat(client.get("again")).isEqualTo(again);
            assertThat(client.exists("half2")).isFalse();
        } finally {
            for (RawLm each : bad) {
                each.close();
            }
        }
    }

    @Test
    void aConnectionThatIsSilentBetweenRequestsStays() throws Exception {
        try (KvServer server = KvServer.start(settings(4 << 20, Duration.ofMillis(500)));
                RawLm silent = new RawLm(server.port());
                RawLm fresh = new RawLm(server.port())) {
            silent.put("a", new byte[] {7});
            try (RawLm half = new RawLm(server.port())) {
                half.send(new byte[10]);
                assertThat(half.isEnded()).isTrue();
            }
            assertThat(silent.get("a")).containsExactly(7);
            assertThat(fresh.exists("a")).isTrue();
        }
    }

    @Test
    void aboveTheLimitAConnectionThatHasAskedNothingGoesAndOneThatHasStays() throws Exception {
        KvServerSettings plain = KvServerSettings.of(0, 4 << 20);
        try (KvServer server = KvServer.start(
                        plain.withLimits(new KvServerSettings.Limits(2, 1 << 20, Duration.ofSeconds(10), 1 << 20)));
                RawLm proven = new RawLm(server.port());
                RawLm silent = new RawLm(server.port())) {
            assertThat(proven.exists("a")).isFalse();
            try (RawLm third = new RawLm(server.port())) {
                assertThat(third.exists("a")).isFalse();
                assertThat(silent.isEnded()).isTrue();
                try (RawLm fourth = new RawLm(server.port())) {
                    assertThat(fourth.isEnded()).isTrue();
                }
                assertThat(proven.exists("a")).isFalse();
                assertThat(third.exists("a")).isFalse();
            }
        }
    }

    @Test
    void aValueOfMoreThanTheLimitIsSkipped() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 4 << 20));
                RawLm client = new RawLm(server.port())) {
            client.put("large", value((1 << 20) + 1));
            assertThat(client.exists("large")).isFalse();
            assertThat(metric(server, "dropped_puts_total{cause=\"too_large\"}"))
                    .isEqualTo(1);
        }
    }

    @Test
    void metricsAndHealthAreAnsweredOverHttp() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 4 << 20).withMetricsPort(OptionalInt.of(0)));
                HttpClient http = HttpClient.newHttpClient();
                RawLm client = new RawLm(server.port())) {
            client.put("a", new byte[100]);
            assertThat(client.exists("a")).isTrue();
            HttpResponse<String> metrics = get(http, server, "/metrics");
            assertThat(metrics.statusCode()).isEqualTo(200);
            assertThat(metrics.body())
                    .contains("# TYPE baton:kv_server_requests_total counter")
                    .contains("baton:kv_server_requests_total{command=\"put\"} 1")
                    .contains("baton:kv_server_values 1\n")
                    .contains("baton:kv_server_memory_used_bytes 4096\n");
            assertThat(get(http, server, "/health").body()).contains("ok");
            assertThat(get(http, server, "/other").statusCode()).isEqualTo(404);
        }
    }

    private static HttpResponse<String> get(HttpClient http, KvServer server, String path) throws Exception {
        URI uri = URI.create("http://127.0.0.1:" + server.metricsPort().orElseThrow() + path);
        return http.send(
                HttpRequest.newBuilder(uri).timeout(Duration.ofSeconds(60)).build(),
                HttpResponse.BodyHandlers.ofString());
    }

    @Test
    void anAddressThatOthersReachNeedsATokenOrTheFlag() {
        String host = "0.0.0.0";
        assertThatThrownBy(() -> settings(host, false))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("host")
                .hasMessageContaining("--token-file")
                .hasMessageContaining("--allow-unauthenticated");
        assertThat(settings(host, true).host()).isEqualTo(host);
        assertThat(settings(InetAddress.getLoopbackAddress().getHostAddress(), false)
                        .host())
                .isNotEmpty();
    }

    private static KvServerSettings settings(String host, boolean unauthenticated) {
        return new KvServerSettings(
                host,
                0,
                OptionalInt.empty(),
                4 << 20,
                Optional.empty(),
                new KvServerSettings.Access(Optional.empty(), Optional.empty(), Optional.empty(), unauthenticated),
                KvServerSettings.Limits.of(4 << 20));
    }
}
