package baton.store.lm;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import baton.memory.MappableMemory;
import baton.store.remote.StoredValues;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The bytes of the protocol, as LMCache 0.5.6 sends and expects them. */
class KvServerWireTest {
    private static final String KEY = "m@1@0@1234@bfloat16";

    private KvServer server;
    private RawLm client;

    @BeforeEach
    void start() throws Exception {
        server = KvServer.start(KvServerSettings.of(0, 16 << 20));
        client = new RawLm(server.port());
    }

    @AfterEach
    void stop() throws Exception {
        client.close();
        server.close();
    }

    @Test
    void anExistRequestHasLmcachesBytes() {
        ByteBuf request = Unpooled.buffer();
        LmWire.writeRequest(request, LmWire.EXIST, 0, LmMetadata.NONE);
        LmKeys.of(List.of(KEY)).write(request, 0);
        assertThat(ByteBufUtil.hexDump(request))
                .hasSize(2 * LmWire.REQUEST_BYTES)
                .isEqualTo("0300000000000000010000000200000000000000" + "00".repeat(16)
                        + "6d4031403040313233344062666c6f61743136" + "20".repeat(131));
        assertThat(RawLm.request(LmWire.EXIST, KEY)).isEqualTo(ByteBufUtil.getBytes(request));
    }

    @Test
    void aReplyHasLmcachesBytes() throws Exception {
        client.send(RawLm.request(LmWire.GET, KEY));
        assertThat(client.reply()).containsExactly(400, 0, 1, 2, 0, 0, 0, 0, 0);
        byte[] value = {1, 2, 3, 4, 5, 6, 7, 8};
        client.send(RawLm.request(LmWire.PUT, KEY, value.length, 1, 3, 2, 1, 2, 1), value);
        client.send(RawLm.request(LmWire.GET, KEY));
        assertThat(client.reply()).containsExactly(200, 8, 1, 3, 2, 1, 2, 1, 0);
        assertThat(client.bytes(8)).isEqualTo(value);
        client.send(RawLm.request(LmWire.EXIST, KEY));
        assertThat(client.reply()).containsExactly(200, 0, 1, 2, 0, 0, 0, 0, 0);
        client.send(RawLm.request(LmWire.HEALTH, KEY));
        assertThat(client.reply()).containsExactly(200, 0, 1, 2, 0, 0, 0, 0, 0);
    }

    @Test
    void listRepliesWithKeysInsteadOfNothing() throws Exception {
        client.put("a@1@0@1@half", new byte[3]);
        client.put("a@1@0@2@half", new byte[3]);
        client.send(RawLm.request(LmWire.LIST, KEY));
        int[] reply = client.reply();
        assertThat(reply[0]).isEqualTo(200);
        assertThat(new String(client.bytes(reply[1]), StandardCharsets.US_ASCII).split("\n"))
                .containsExactly("a@1@0@2@half", "a@1@0@1@half");
    }

    @Test
    void manyRequestsInOneWriteAreAnsweredInOrder() throws Exception {
        client.put(KEY, new byte[] {9});
        byte[][] requests = new byte[3000][];
        for (int i = 0; i < requests.length; i++) {
            requests[i] = RawLm.request(LmWire.EXIST, i % 3 == 0 ? KEY : "m@1@0@" + i + "@half");
        }
        client.send(requests);
        for (int i = 0; i < requests.length; i++) {
            assertThat(client.reply()[0]).isEqualTo(i % 3 == 0 ? 200 : 400);
        }
    }

    @Test
    void aHeaderInPiecesIsUnderstood() throws Exception {
        byte[] value = new byte[100_000];
        new Random(5).nextBytes(value);
        byte[] request = RawLm.request(LmWire.PUT, KEY, value.length, 5, 6, value.length);
        for (byte each : request) {
            client.send(new byte[] {each});
        }
        for (int at = 0; at < value.length; at += 7777) {
            client.send(Arrays.copyOfRange(value, at, Math.min(value.length, at + 7777)));
        }
        assertThat(client.get(KEY)).isEqualTo(value);
    }

    @Test
    void aValueThatLosesItsConnectionIsNotStoredAndTheOldOneStays() throws Exception {
        client.put(KEY, new byte[] {1, 2, 3});
        assertThat(client.exists(KEY)).isTrue();
        for (String key : List.of(KEY, "m@1@0@5@half")) {
            try (RawLm breaking = new RawLm(server.port())) {
                breaking.send(RawLm.request(LmWire.PUT, key, 1 << 20, 5, 6, 1 << 20), new byte[300_000]);
            }
        }
        StoredValues.until(
                "both broken values are dropped",
                () -> server.metrics().contains("baton:kv_server_dropped_puts_total{cause=\"broken\"} 2"));
        assertThat(client.exists("m@1@0@5@half")).isFalse();
        assertThat(client.get(KEY)).containsExactly(1, 2, 3);
    }

    @Test
    void aMalformedRequestEndsItsConnectionOnly() throws Exception {
        byte[] control = RawLm.request(LmWire.GET, "a\u0007b");
        byte[] longer = RawLm.request(LmWire.EXIST, KEY, 5, 1, 2);
        for (byte[] bad : List.of(
                RawLm.request(77, KEY),
                RawLm.request(LmWire.GET, ""),
                RawLm.request(LmWire.PUT, KEY, -1, 1, 2),
                RawLm.request(LmWire.PUT, KEY, 1, 1, 99),
                RawLm.request(LmWire.BATCH_EXIST, KEY, 100, 1, 2, 1 << 20, 1, 0),
                control,
                longer)) {
            try (RawLm garbage = new RawLm(server.port())) {
                garbage.send(bad);
                assertThat(garbage.isEnded()).isTrue();
            }
        }
        assertThat(client.exists(KEY)).isFalse();
        assertThat(server.metrics()).contains("baton:kv_server_closed_connections_total{cause=\"garbage\"} 7");
    }

    @Test
    void theProbeReportsTheServersAdditions() throws Exception {
        client.send(RawLm.request(LmWire.EXIST, LmWire.PROBE));
        assertThat(client.reply())
                .containsExactly(200, 0, 1, 2, MappableMemory.whyNone().isPresent() ? 1 : 2, 0, 0, 0, 0);
    }

    @Test
    void aBatchIsAnsweredByABitForEachKey() throws Exception {
        client.put("pre-b-post", new byte[1]);
        client.put("pre-ccc-post", new byte[1]);
        byte[] rest = {1, 'a', 1, 'b', 0, 3, 'c', 'c', 'c'};
        client.send(RawLm.request(LmWire.BATCH_EXIST, "pre--post", rest.length, 1, 2, 4, 4, 5), rest);
        assertThat(client.reply()).containsExactly(200, 1, 1, 2, 4, 0, 0, 0, 0);
        assertThat(client.bytes(1)).containsExactly(0b1010);
        assertThat(client.exists("pre-b-post")).isTrue();
    }
}
