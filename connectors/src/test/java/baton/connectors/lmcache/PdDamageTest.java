package baton.connectors.lmcache;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.testkit.Await;
import baton.testkit.Damages;
import baton.testkit.Damages.Damage;
import baton.testkit.Damages.Kind;
import baton.testkit.DamagingProxy;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Messages between a sender and a receiver that are damaged, and their blocks that are not. */
@Timeout(300)
class PdDamageTest {
    private static final int BLOCK = 4;
    private static final int HASH_BYTES = 32;
    private static final int LENGTH = 8 * BLOCK + 1;

    private final AtomicInteger swapped = new AtomicInteger();

    @Test
    void blocksThatAreOfferedUnderTheHashesOfOthersAreNotUsed() throws Exception {
        int port = FreePorts.inARow(1);
        InetSocketAddress receiver = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        try (DamagingProxy proxy =
                        new DamagingProxy("pd", 0, receiver, new Damages(), (_, bytes) -> swapFirstHashes(bytes));
                FakeEngine decode = engine(KvRole.CONSUMER, "receiver", port);
                FakeEngine prefill = engine(KvRole.PRODUCER, "sender", proxy.port())) {
            int transferred = handOver(prefill, decode, 1);

            assertThat(swapped).as("messages with exchanged hashes").hasPositiveValue();
            assertThat(transferred).isZero();
        }
    }

    @Test
    void senderAndReceiverConnectAnewAfterTheirAgentsConnectionWasCut() throws Exception {
        int port = FreePorts.inARow(1);
        InetSocketAddress receiver = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        Damages damages = new Damages();
        try (DamagingProxy proxy = new DamagingProxy("pd", 0, receiver, damages, PdDamageTest::leadAgentThroughProxy);
                FakeEngine decode = engine(KvRole.CONSUMER, "receiver", port);
                FakeEngine prefill = engine(KvRole.PRODUCER, "sender", proxy.port())) {
            assertThat(handOver(prefill, decode, 1)).isEqualTo(LENGTH - 1);

            damages.arm(new Damage(Kind.CUT, DamagingProxy.lanes("agent").getLast(), 0, 1));
            assertThat(handOver(prefill, decode, 2)).isZero();
            assertThat(damages.count()).isEqualTo(1);

            AtomicInteger prompts = new AtomicInteger(2);
            Await.until(
                    Duration.ofMinutes(2),
                    () -> "nothing is handed over after the cut",
                    () -> handOver(prefill, decode, prompts.incrementAndGet()) > 0);
        }
    }

    /** Changes the port of the sender's agent, four bytes behind its host. */
    private static void leadAgentThroughProxy(DamagingProxy proxy, byte[] bytes) throws IOException {
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        int host = text.indexOf("127.0.0.1\0\0");
        if (host >= 0) {
            ByteBuffer fields = ByteBuffer.wrap(bytes);
            int at = host + "127.0.0.1".length();
            fields.putInt(at, proxy.through("agent", fields.getInt(at)));
        }
    }

    /** Tokens of a prompt that the decode engine has from the prefill engine. */
    private static int handOver(FakeEngine prefill, FakeEngine decode, int seed) throws Exception {
        int[] prompt = FakeKvRequest.counting(seed * 1000, LENGTH);
        Running first = prefill.admit(new FakeKvRequest("r-%08x".formatted(2 * seed), prompt, BLOCK), 0);
        prefill.step(new Share(first, LENGTH));
        Optional<JsonFields> answer = prefill.end(first, RequestEnd.LENGTH);
        FakeKvRequest leg = new FakeKvRequest("r-%08x".formatted(2 * seed + 1), prompt, BLOCK);
        Running second = decode.admit(answer.map(leg::withKvTransferParams).orElse(leg), 0);
        if (second.isLoading()) {
            decode.awaitLoad(second);
        }
        assertThat(decode.holds(second, 0, second.computedTokens())).isTrue();
        decode.end(second, RequestEnd.ABORTED);
        return second.computedTokens();
    }

    /** Exchanges the first two hashes of a message that offers blocks. */
    private void swapFirstHashes(byte[] bytes) {
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        int offer = text.indexOf("Ready");
        int name = offer < 0 ? -1 : text.indexOf("blocks", offer);
        if (name < 0) {
            return;
        }
        // Behind the type of the binary value are one or two bytes of length.
        int type = name + "blocks".length();
        int at = type + (bytes[type] == (byte) 0xc4 ? 2 : 3);
        byte[] first = Arrays.copyOfRange(bytes, at, at + HASH_BYTES);
        System.arraycopy(bytes, at + HASH_BYTES, bytes, at, HASH_BYTES);
        System.arraycopy(first, 0, bytes, at + HASH_BYTES, HASH_BYTES);
        swapped.incrementAndGet();
    }

    private static FakeEngine engine(KvRole role, String pdRole, int port) {
        KvTransferConfig config = KvTransferConfig.builder("LMCacheConnectorV1", role)
                .extra("lmcache.enable_pd", true)
                .extra("lmcache.pd_role", pdRole)
                .extra("lmcache.pd_buffer_size", 1 << 20)
                .extra("lmcache.pd_buffer_device", "cpu")
                .extra("lmcache.pd_peer_host", "127.0.0.1")
                .extra("lmcache.pd_peer_init_port", port)
                .extra("lmcache.blocking_timeout_secs", 5)
                .extra("transport", "tcp")
                .build();
        return new FakeEngine(
                LmCacheConnector.withEnvironment(Map.of()),
                new ConnectorContext(
                        config,
                        new ModelFingerprint("fake", "digest"),
                        new KvLayout(3, 2, BLOCK, 4, DType.F32),
                        Ticker.system()),
                64);
    }
}
