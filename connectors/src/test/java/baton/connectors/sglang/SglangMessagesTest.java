package baton.connectors.sglang;

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
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.messages.sglang.PrefillTopology;
import baton.messages.sglang.SglangExchange;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Messages that no instance of SGLang sends, over real connections. */
@Timeout(300)
class SglangMessagesTest {
    private static final String HOST = "127.0.0.1";
    private static final KvLayout LAYOUT = new KvLayout(2, 2, 4, 4, DType.F32);
    private static final int BLOCKS = 64;
    private static final int TOKENS = 20;
    private static final Duration PATIENCE = Duration.ofMinutes(2);
    private static final String SESSION = "127.0.0.1:9";

    /** The peer's, which this test plays. */
    private final SglangExchange exchange =
            new SglangExchange(PeerAccess.everyone(), Executors.newVirtualThreadPerTaskExecutor(), Ticker.system());

    private final BlockingQueue<List<String>> received = new LinkedBlockingQueue<>();
    private final List<AutoCloseable> opened = new ArrayList<>(List.of(exchange));
    private int requests;
    /** The bad messages that the engine has counted in {@link #steps}. */
    private int badMessages;

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : opened.reversed()) {
            each.close();
        }
    }

    private FakeEngine engine(KvRole role, int port) {
        FakeEngine engine = new FakeEngine(
                new SglangConnector(),
                new ConnectorContext(
                        KvTransferConfig.builder("SglangConnector", role)
                                .extra("bootstrap_port", port)
                                .build(),
                        new ModelFingerprint("fake", "digest"),
                        LAYOUT,
                        Ticker.system()),
                BLOCKS);
        opened.add(engine);
        return engine;
    }

    private FakeKvRequest request(int port, long room) {
        return new FakeKvRequest("cmpl-" + ++requests + "-0", FakeKvRequest.counting(5, TOKENS), LAYOUT.blockSize())
                .withKvTransferParams(JsonFields.parse(
                        "",
                        "{\"bootstrap_host\": \"%s\", \"bootstrap_port\": %d, \"bootstrap_room\": %d}"
                                .formatted(HOST, port, room)));
    }

    private PeerAddress listen() throws Exception {
        return exchange.listen(
                HOST,
                frames -> received.add(frames.stream()
                        .map(frame -> new String(frame, StandardCharsets.ISO_8859_1))
                        .toList()));
    }

    private void steps(FakeEngine engine, BooleanSupplier until) {
        for (int i = 0; !until.getAsBoolean() && i < PATIENCE.toMillis(); i++) {
            engine.idleStep().measurements().stream()
                    .filter(each -> each.name().equals("baton:sglang_bad_messages"))
                    .forEach(each -> badMessages += (int) each.value());
            LockSupport.parkNanos(1_000_000);
        }
        assertThat(until.getAsBoolean()).isTrue();
    }

    private List<String> receive(FakeEngine engine) {
        steps(engine, () -> !received.isEmpty());
        return received.remove();
    }

    /** Sends a message with another one behind it that is none, and waits for that. */
    private void sendAndAwait(FakeEngine engine, PeerAddress to, byte[]... frames) {
        int before = badMessages;
        send(to, frames);
        send(to, ascii("none"));
        steps(engine, () -> badMessages > before);
    }

    private void send(PeerAddress to, byte[]... frames) {
        exchange.send(to, List.of(List.of(frames)), () -> {});
    }

    private static byte[][] ascii(String... frames) {
        return Arrays.stream(frames).map(DecodeRank::ascii).toArray(byte[][]::new);
    }

    private static DecodeRank rank(int buffers) {
        return new DecodeRank(SESSION, new long[buffers], new long[11], 0, 1, LAYOUT.layerBytes() / 2, true);
    }

    @Test
    void aPrefillRankDropsUnreadableMessagesAndGoesOn() throws Exception {
        int port = FreePorts.inARow(1);
        FakeEngine prefill = engine(KvRole.PRODUCER, port);
        PeerAddress rank =
                exchange.rank(new PeerAddress(HOST, port), 0, 0, 0, PATIENCE).join();
        PeerAddress own = listen();
        byte[][] wanted =
                new WantedPages(1, own, SESSION, new int[1], 0, 1, 0).encode().toArray(byte[][]::new);
        List<byte[][]> bad = new ArrayList<>(List.of(
                ascii(""),
                ascii("None"),
                ascii("ABORT"),
                ascii("ABORT", "x"),
                ascii("ABORT", "1", HOST, "0"),
                ascii("ABORT", "1", HOST, "9", "x".repeat(1 << 20)),
                ascii("None", HOST, "9", "no address", "", "", "", "0", "1", "4"),
                ascii("None", HOST, "9", SESSION, "odd", "", "", "0", "1", "4"),
                ascii("None", HOST, "9", SESSION, "x".repeat(1 << 20), "", "", "0", "1", "4"),
                ascii("None", HOST, "9", SESSION, "", "", "", "-1", "1", "4")));
        for (int frame : new int[] {0, 1, 2, 4, 5, 7, 8}) {
            byte[][] changed = wanted.clone();
            // As a page's index it is below 0.
            changed[frame] = new byte[] {0, 0, 0, -1};
            bad.add(changed);
        }
        bad.forEach(frames -> send(rank, frames));

        // Registered, with more pages than there are; then with buffers of another model.
        send(rank, rank(4).encode(own).toArray(byte[][]::new));
        send(
                rank,
                new WantedPages(2, own, SESSION, new int[BLOCKS + 1], 0, 1, 0)
                        .encode()
                        .toArray(byte[][]::new));
        send(rank, rank(6).encode(own).toArray(byte[][]::new));
        send(rank, wanted);
        send(rank, ascii("ABORT", "3", HOST, "" + own.port(), "7"));

        assertThat(receive(prefill)).startsWith("2", "0");
        assertThat(receive(prefill)).startsWith("1", "0");
        assertThat(receive(prefill)).containsExactly("ABORT_ACK", "3", "0", "7");
        assertThat(badMessages).isEqualTo(bad.size());

        FakeEngine decode = engine(KvRole.CONSUMER, 0);
        FakeKvRequest request = request(port, 5);
        Running kept = prefill.admit(request, 0);
        prefill.step(new Share(kept, TOKENS));
        prefill.end(kept, RequestEnd.LENGTH);
        Running loaded = decode.admit(request, 0);
        steps(prefill, () -> {
            assertThat(decode.idleStep().invalidBlocks()).isEmpty();
            return !loaded.isLoading();
        });
        assertThat(decode.holds(loaded, 0, TOKENS)).isTrue();
    }

    /** Rooms begin at 0, and rows that were not written have zeros. */
    @Test
    void aPromptThatWasNotWrittenIsNotTakenOverWhateverTheStatus() throws Exception {
        PeerAddress own = listen();
        int port = exchange.serve(HOST, 0, topology(), Map.of(List.of(0, 0), own));
        FakeEngine decode = engine(KvRole.CONSUMER, 0);
        Running running = decode.admit(request(port, 0), 0);
        PeerAddress rank = registered(receive(decode));
        assertThat(receive(decode)).startsWith("0", HOST);
        send(rank, ascii("0"));
        send(rank, ascii("0", "5", "0"));
        send(rank, ascii("junk", "4", "0"));
        send(rank, ascii("AUX_DATA"));
        send(rank, ascii("0", "4", "0"));
        assertThat(decode.awaitLoad(running).invalidBlocks()).hasSize(LAYOUT.blocksFor(TOKENS));
    }

    @Test
    void pagesOfAFailedLoadAreHeldUntilTheAnswerForItsRoom() throws Exception {
        PeerAddress own = listen();
        int port = exchange.serve(HOST, 0, topology(), Map.of(List.of(0, 0), own));
        FakeEngine decode = engine(KvRole.CONSUMER, 0);
        Running failed = decode.admit(request(port, 1), 0);
        PeerAddress rank = registered(receive(decode));
        int[] pages = pages(receive(decode));
        send(rank, ascii("1", "0", "0"));
        decode.awaitLoad(failed);
        List<String> abort = receive(decode);
        assertThat(abort).startsWith("ABORT", "1");

        sendAndAwait(decode, rank, ascii("ABORT_ACK", "2", "0", abort.get(4)));
        sendAndAwait(decode, rank, ascii("ABORT_ACK", "1", "0"));
        assertThat(pagesOfFailedLoad(decode, port, rank, 2)).doesNotContain(pages);
        sendAndAwait(decode, rank, ascii("ABORT_ACK", "1", "0", abort.get(4)));
        assertThat(pagesOfFailedLoad(decode, port, rank, 3)).isEqualTo(pages);
    }

    private int[] pagesOfFailedLoad(FakeEngine decode, int port, PeerAddress rank, long room) {
        Running running = decode.admit(request(port, room), 0);
        int[] pages = pages(receive(decode));
        send(rank, ascii("" + room, "0", "0"));
        decode.awaitLoad(running);
        assertThat(receive(decode)).startsWith("ABORT", "" + room);
        return pages;
    }

    private static int[] pages(List<String> wanted) {
        return WantedPages.decode(Arrays.asList(ascii(wanted.toArray(String[]::new))))
                .pages();
    }

    private static PrefillTopology topology() {
        return new PrefillTopology(
                1, 1, 1, 1, Optional.of(LAYOUT.blockSize()), Optional.empty(), true, PrefillTopology.EARLY);
    }

    private static PeerAddress registered(List<String> registration) {
        assertThat(registration).startsWith("None", HOST);
        return new PeerAddress(registration.get(1), Integer.parseInt(registration.get(2)));
    }

    @Test
    void loadsThatWaitForOneAnswerOfARegistryFailWithIt() throws Exception {
        CountDownLatch waiting = new CountDownLatch(1);
        AtomicInteger questions = new AtomicInteger();
        HttpServer registry = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 16);
        registry.setExecutor(Executors.newVirtualThreadPerTaskExecutor());
        registry.createContext("/route", question -> {
            questions.incrementAndGet();
            try {
                assertThat(waiting.await(PATIENCE.toSeconds(), TimeUnit.SECONDS))
                        .isTrue();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            question.sendResponseHeaders(404, -1);
            question.close();
        });
        registry.start();
        opened.add(() -> registry.stop(0));
        int port = registry.getAddress().getPort();
        FakeEngine decode = engine(KvRole.CONSUMER, 0);
        List<Running> loads = IntStream.range(0, 5)
                .mapToObj(room -> decode.admit(request(port, room), 0))
                .toList();
        decode.idleStep();
        waiting.countDown();
        loads.forEach(decode::awaitLoad);
        assertThat(questions).hasValue(1);
        decode.awaitLoad(decode.admit(request(port, 5), 0));
        assertThat(questions).hasValue(2);
    }
}
