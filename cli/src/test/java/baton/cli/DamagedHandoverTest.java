package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.kv.FreePorts;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pRequestId;
import baton.testkit.Damages;
import baton.testkit.Damages.Damage;
import baton.testkit.Damages.Kind;
import baton.testkit.DamagingProxy;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * A prefill and a decode instance in processes of their own, and a network between them that flips, cuts, drops, swaps and repeats bytes:
 * every answer is the right one, and so is every answer from what the caches have afterwards. {@code -Dtests.damaged=N} is for N damages
 * of each connector, {@code -Dtests.seed=N} for other ones.
 */
@Timeout(3600)
class DamagedHandoverTest {
    private static final int DAMAGES = Integer.getInteger("tests.damaged", 10);
    private static final long SEED = Long.getLong("tests.seed", 6);
    private static final int MAX_TOKENS = 6;
    /** Prompts that are asked again together. */
    private static final int WAVE = 10;
    /** Of heads and control messages. */
    private static final long HEADS = 1500;

    private static final String TRANSFER = "--kv-transfer-config.";
    private static final String EXTRA = TRANSFER + "kv_connector_extra_config.";
    private static final int WIRE_ID = 0x42544e57;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @SuppressWarnings("NullAway.Init")
    private static Instance alone;

    private final List<DamagingProxy> proxies = new ArrayList<>();
    private final Damages damages = new Damages();
    private final Random random = new Random(SEED);
    private int prompts;

    @BeforeAll
    static void start() throws IOException {
        alone = INSTANCES.serve("alone", "--dtype", "float32");
    }

    @AfterEach
    void close() throws IOException {
        for (DamagingProxy proxy : proxies) {
            proxy.close();
        }
    }

    private record Asked(int[] prompt, int[] answer) {}

    /** Hands a prompt over; the two legs' tokens. */
    private interface Flow {
        void handOver(Asked asked, String what) throws Exception;
    }

    @ParameterizedTest
    @ValueSource(strings = {"PUT_ASYNC", "GET"})
    void p2p(String sendType) throws Exception {
        int port = FreePorts.inARow(4);
        PeerAddress prefillAddress = new PeerAddress("127.0.0.1", port);
        PeerAddress decodeAddress = new PeerAddress("127.0.0.1", port + 1);
        PeerAddress prefillProxied = new PeerAddress("127.0.0.1", port + 2);
        PeerAddress decodeProxied = new PeerAddress("127.0.0.1", port + 3);
        DamagingProxy.Rewriting rewriting = (proxy, bytes) -> {
            // An instance is known by its address, so each has to call itself as the other one reaches it.
            replace(bytes, prefillAddress.toString(), prefillProxied.toString());
            replace(bytes, decodeAddress.toString(), decodeProxied.toString());
            leadWireThrough(proxy, bytes);
        };
        proxies.add(new DamagingProxy("control", port + 2, loopback(port), damages, rewriting));
        proxies.add(new DamagingProxy("control", port + 3, loopback(port + 1), damages, rewriting));
        Instance prefill = serveP2p("p2p-prefill-" + sendType, "kv_producer", port, sendType);
        Instance decode = serveP2p("p2p-decode-" + sendType, "kv_consumer", port + 1, sendType);

        Flow flow = (asked, what) -> {
            String unique = "%016x%016x".formatted(random.nextLong(), random.nextLong());
            String id = new P2pRequestId(prefillProxied, decodeProxied, unique).format();
            assertAnswer(ask(prefill, asked, 1, "X-Request-Id", id), asked, 1, what);
            assertAnswer(ask(decode, asked, MAX_TOKENS, "X-Request-Id", id), asked, MAX_TOKENS, what);
        };
        List<String> lanes = new ArrayList<>(DamagingProxy.lanes("control"));
        lanes.addAll(DamagingProxy.lanes("data"));
        String data = sendType.equals("GET")
                ? DamagingProxy.lanes("data").getFirst()
                : DamagingProxy.lanes("data").getLast();
        damageAll(flow, lanes, data, () -> decode.metric("baton:kv_load_bytes_total", ""));

        assertThat(decode.metric("baton:kv_load_failures_total", "\"corrupt\"")).isPositive();
        assertThat(decode.metric("baton:p2p_corrupt_total", "")).isPositive();
        assertThat(decode.metric("baton:p2p_unchecked_tensors_total", "")).isZero();
        assertThat(prefill.prompts().cached()).isPositive();
        assertThat(decode.prompts().cached()).isPositive();
    }

    private static Instance serveP2p(String name, String role, int port, String sendType) throws IOException {
        return INSTANCES.serve(
                name,
                "--dtype",
                "float32",
                TRANSFER + "kv_connector",
                "P2pNcclConnector",
                TRANSFER + "kv_role",
                role,
                TRANSFER + "kv_port",
                Integer.toString(port),
                TRANSFER + "kv_load_failure_policy",
                "recompute",
                EXTRA + "send_type",
                sendType,
                EXTRA + "exchange_timeout",
                "2",
                EXTRA + "transfer_timeout",
                "2",
                EXTRA + "load_timeout",
                "4",
                EXTRA + "tensor_ttl",
                "10");
    }

    @Test
    void pyNccl() throws Exception {
        int port = FreePorts.inARow(4);
        proxies.add(new DamagingProxy("requests", port + 2, loopback(port), damages, DamagingProxy.Rewriting.NONE));
        proxies.add(new DamagingProxy("answers", port + 3, loopback(port + 1), damages, DamagingProxy.Rewriting.NONE));
        Instance prefill = servePyNccl("pynccl-prefill", "kv_producer", port);
        Instance decode = servePyNccl("pynccl-decode", "kv_consumer", port + 2);

        Flow flow = (asked, what) -> {
            assertAnswer(ask(prefill, asked, 1), asked, 1, what);
            assertAnswer(ask(decode, asked, MAX_TOKENS), asked, MAX_TOKENS, what);
        };
        List<String> lanes = new ArrayList<>(DamagingProxy.lanes("requests"));
        lanes.addAll(DamagingProxy.lanes("answers"));
        String data = DamagingProxy.lanes("answers").getLast();
        damageAll(flow, lanes, data, () -> decode.metric("baton:kv_lookup_bytes_total", ""));

        assertThat(decode.metric("baton:kv_lookup_failures_total", "\"corrupt\""))
                .isPositive();
        assertThat(prefill.prompts().cached()).isPositive();
        assertThat(decode.prompts().cached()).isPositive();
    }

    private static Instance servePyNccl(String name, String role, int port) throws IOException {
        return INSTANCES.serve(
                name,
                "--dtype",
                "float32",
                TRANSFER + "kv_connector",
                "PyNcclConnector",
                TRANSFER + "kv_role",
                role,
                TRANSFER + "kv_parallel_size",
                "2",
                TRANSFER + "kv_port",
                Integer.toString(port),
                TRANSFER + "kv_load_failure_policy",
                "recompute",
                EXTRA + "silence_seconds",
                "2",
                EXTRA + "lookup_timeout_seconds",
                "4",
                EXTRA + "insert_timeout_seconds",
                "4",
                EXTRA + "keep_seconds",
                "4",
                EXTRA + "connect_wait_seconds",
                "4");
    }

    private static InetSocketAddress loopback(int port) {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    }

    private interface Sum {
        double get() throws Exception;
    }

    /**
     * Hands prompts over until so many damages have happened.
     *
     * @param data the lane of tensors' bytes
     * @param received bytes of tensors so far
     */
    private void damageAll(Flow flow, List<String> lanes, String data, Sum received) throws Exception {
        double before = received.get();
        for (int i = 0; i < 20 && received.get() == before; i++) {
            // The instances may not be connected yet.
            flow.handOver(prompt(), "undamaged");
        }
        long bytes = (long) (received.get() - before);
        assertThat(bytes).as("bytes handed over").isPositive();
        // One that is certain to hit a tensor.
        Damage damage = new Damage(Kind.FLIP, data, bytes / 2, 1);
        List<Asked> wave = new ArrayList<>();
        for (int most = 10 * DAMAGES; damages.count() < DAMAGES; most--) {
            assertThat(most).as("hand-overs left, after %s", damages.byKind()).isPositive();
            damages.arm(damage);
            wave.add(prompt());
            flow.handOver(wave.getLast(), damage + ", -Dtests.seed=" + SEED);
            String lane = random.nextBoolean() ? data : lanes.get(random.nextInt(lanes.size()));
            damage = Damage.random(random, List.of(lane), lane.equals(data) ? bytes : HEADS);
            if (wave.size() == WAVE) {
                askAgain(flow, wave);
                wave.clear();
            }
        }
        askAgain(flow, wave);
        System.out.println("damages: " + damages.byKind());
    }

    /** From what the caches have. */
    private void askAgain(Flow flow, List<Asked> wave) throws Exception {
        boolean _ = damages.disarm();
        for (Asked asked : wave) {
            flow.handOver(asked, "again, -Dtests.seed=" + SEED);
        }
    }

    /** One that no cache has. */
    private Asked prompt() throws Exception {
        int[] prompt = Ledgers.prompt(40 + random.nextInt(200), prompts++);
        for (int i = 2; i < 8; i++) {
            prompt[i] = 5 + random.nextInt(200);
        }
        return new Asked(prompt, alone.complete(prompt, MAX_TOKENS).tokenIds());
    }

    private static Reply ask(Instance instance, Asked asked, int tokens, String... headers) throws Exception {
        return instance.post(
                "/v1/completions", Instances.greedy(asked.prompt, tokens).toString(), headers);
    }

    private static void assertAnswer(Reply reply, Asked asked, int tokens, String what) {
        assertThat(reply.tokenIds())
                .as(what)
                .isEqualTo(Arrays.copyOf(asked.answer, Math.min(tokens, asked.answer.length)));
    }

    /** The same number of bytes in ASCII. */
    private static void replace(byte[] bytes, String old, String with) {
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        for (int at = text.indexOf(old); at >= 0; at = text.indexOf(old, at + 1)) {
            System.arraycopy(with.getBytes(StandardCharsets.ISO_8859_1), 0, bytes, at, with.length());
        }
    }

    /** If the bytes have the id of a wire ({@link baton.pipe.WireId}), the wire goes through a proxy. */
    private static void leadWireThrough(DamagingProxy proxy, byte[] bytes) throws IOException {
        ByteBuffer message = ByteBuffer.wrap(bytes);
        int port = Integer.BYTES + 3 + 4;
        for (int at = 0; at + port + Short.BYTES <= bytes.length; at++) {
            if (message.getInt(at) == WIRE_ID) {
                int through = proxy.through("data", Short.toUnsignedInt(message.getShort(at + port)));
                message.putShort(at + port, (short) through);
            }
        }
    }
}
