package baton.connectors.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.connectors.mooncake.XferReply.Status;
import baton.connectors.mooncake.XferReply.Written;
import baton.connectors.mooncake.XferRequest.Own;
import baton.connectors.mooncake.XferRequest.Wanted;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.Arena;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/**
 * The messages in msgpack. With vLLM, its own classes decode them and encode them again. The environment variable {@code BATON_PYTHON}
 * names the interpreter, else it is {@code python3}.
 */
@Timeout(300)
class MessagesTest {
    private static final String PYTHON =
            Optional.ofNullable(System.getenv("BATON_PYTHON")).orElse("python3");
    private static final KvLayout LAYOUT = new KvLayout(2, 2, 4, 4, DType.F32);
    private static final Own OWN = new Own("a.0.0.1", "xfer-1", "version=1", new byte[] {1, -1}, -2, false);
    private static final Written WRITTEN = new Written("digest", new int[] {0, 1}, 16, 32, new int[] {-1, 7});

    private static final long LAYOUT_ID = 0x7edc_ba98_7654_3211L;

    private static XferRequest request(Optional<Own> own, int stages) {
        return request(own, stages, LAYOUT_ID);
    }

    private static XferRequest request(Optional<Own> own, int stages, long layoutId) {
        try (Arena arena = Arena.ofConfined()) {
            KvCache cache = new KvCache(
                    arena.allocate(3 * LAYOUT.blockBytes(), 64),
                    LAYOUT,
                    3,
                    List.of("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"));
            Map<String, Wanted> wanted = new LinkedHashMap<>();
            wanted.put("cmpl-1", new Wanted("xfer-1", List.of(new int[] {2, 0, 70_000})));
            wanted.put("cmpl-2", new Wanted("xfer-2", List.of(new int[0])));
            return new XferRequest("10.0.0.1", 15_000, 2, 1, stages, wanted, MooncakeRegion.of(cache), layoutId, own);
        }
    }

    private static void assertSame(XferRequest read, XferRequest sent) {
        assertThat(read.encode()).isEqualTo(sent.encode());
        assertThat(read.regions()).isEqualTo(sent.regions());
        assertThat(read.layoutKey()).isEqualTo(sent.layoutKey());
        assertThat(read.requests().keySet()).containsExactly("cmpl-1", "cmpl-2");
        assertThat(read.requests().values()).extracting(Wanted::isRelease).containsExactly(false, true);
        assertThat(read.own().map(Own::attempt)).isEqualTo(sent.own().map(Own::attempt));
    }

    private static List<XferReply> replies() {
        return List.of(
                new XferReply(Status.FINISH, List.of("a", "b"), List.of("c"), Optional.of("why"), 0, Optional.empty()),
                new XferReply(Status.CONTINUE, List.of("a"), List.of(), Optional.empty(), LAYOUT_ID, Optional.empty()),
                new XferReply(
                        Status.FINISH, List.of("a"), List.of(), Optional.empty(), LAYOUT_ID, Optional.of(WRITTEN)),
                XferReply.of(Status.ERROR, "no"),
                XferReply.of(Status.LAYOUT_MISS, "no such layout"));
    }

    @Test
    void encodedMessagesAreDecoded() {
        for (int stages : new int[] {1, 2}) {
            for (Optional<Own> own : List.of(Optional.<Own>empty(), Optional.of(OWN))) {
                XferRequest request = request(own, stages);
                XferRequest older = request(own, stages, 0);
                assertSame(XferRequest.decode(older.encode()), older);
                assertSame(XferRequest.decode(request.encode()), request);
                XferRequest remembered = withoutRegions(request);
                assertThat(remembered.encode()).hasSizeLessThan(request.encode().length - 150);
                assertSame(XferRequest.decode(remembered.encode()), remembered);
            }
        }
        for (XferReply reply : replies()) {
            assertThat(XferReply.decode(reply.encode()).encode()).isEqualTo(reply.encode());
        }
    }

    @Test
    void regionsAreThoseOfThePool() {
        List<MooncakeRegion> regions = request(Optional.empty(), 1).regions();
        assertThat(regions.get(1).address() - regions.get(0).address()).isEqualTo(LAYOUT.layerBytes());
        assertThat(regions).extracting(MooncakeRegion::layerIndex).containsExactly(0, 1);
        assertThat(regions).extracting(MooncakeRegion::stride).containsOnly(LAYOUT.blockBytes());
        assertThat(regions).extracting(MooncakeRegion::bytes).containsOnly(LAYOUT.layerBytes());
    }

    /** Whatever bytes come, nothing but the promised error is thrown. */
    @Test
    void malformedMessagesAreRefused() {
        Random random = new Random(7);
        byte[] request = request(Optional.of(OWN), 2).encode();
        byte[] reply = replies().get(2).encode();
        for (int i = 0; i < 20_000; i++) {
            byte[] bytes = (i % 2 == 0 ? request : reply).clone();
            for (int flips = 1 + random.nextInt(4); flips > 0; flips--) {
                bytes[random.nextInt(bytes.length)] = (byte) random.nextInt();
            }
            try {
                if (i % 2 == 0) {
                    byte[] unusedAgain = XferRequest.decode(bytes).encode();
                } else {
                    byte[] unusedAgain = XferReply.decode(bytes).encode();
                }
            } catch (InvalidFieldException e) {
                assertThat(e).hasMessageStartingWith("Mooncake");
            }
        }
        assertThatThrownBy(() -> XferRequest.decode(new byte[] {(byte) 0x80}))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessageContaining("must have remote_hostname");
    }

    @TempDir
    Path directory;

    @Test
    void vllmDecodesThemAndEncodesThemAgain() throws Exception {
        assumeTrue(
                runs("-c", "import vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector"),
                PYTHON + " has no vLLM with MooncakeConnector (BATON_PYTHON names the interpreter)");
        Path script = directory.resolve("messages.py");
        try (InputStream in = Objects.requireNonNull(MessagesTest.class.getResourceAsStream("messages.py"))) {
            Files.copy(in, script);
        }
        StringBuilder lines = new StringBuilder();
        List<XferRequest> requests = List.of(
                request(Optional.empty(), 1),
                request(Optional.of(OWN), 2),
                withoutRegions(request(Optional.of(OWN), 2)));
        for (XferRequest request : requests) {
            lines.append("request ")
                    .append(HexFormat.of().formatHex(request.encode()))
                    .append('\n');
        }
        for (XferReply reply : replies()) {
            lines.append("reply ")
                    .append(HexFormat.of().formatHex(reply.encode()))
                    .append('\n');
        }
        Files.writeString(directory.resolve("in"), lines);
        Process python = new ProcessBuilder(PYTHON, script.toString())
                .redirectInput(directory.resolve("in").toFile())
                .redirectOutput(directory.resolve("out").toFile())
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try {
            assertThat(python.waitFor(240, TimeUnit.SECONDS)).isTrue();
        } finally {
            python.destroyForcibly();
        }
        assertThat(python.exitValue()).isZero();
        List<String> out = Files.readAllLines(directory.resolve("out"));
        boolean knowsLayouts = out.contains("layout_id True");
        assertThat(out).contains("layout_id " + (knowsLayouts ? "True" : "False"));
        List<byte[]> back = out.stream()
                .filter(line -> line.startsWith("again "))
                .map(line -> HexFormat.of().parseHex(line.substring("again ".length())))
                .toList();
        // vLLM leaves out Baton's fields, and before 0.33 layout_id; otherwise it has the same bytes.
        for (int i = 0; i < requests.size(); i++) {
            XferRequest sent = requests.get(i);
            XferRequest left = like(sent, sent.regions(), knowsLayouts ? sent.layoutId() : 0, Optional.empty());
            assertThat(back.get(i)).isEqualTo(left.encode());
        }
        List<XferReply> known = replies().stream()
                .filter(reply -> knowsLayouts || reply.status() != Status.LAYOUT_MISS)
                .toList();
        assertThat(back).hasSize(requests.size() + known.size());
        for (int i = 0; i < known.size(); i++) {
            XferReply reply = known.get(i);
            XferReply left = new XferReply(
                    reply.status(),
                    reply.ok(),
                    reply.failed(),
                    reply.error(),
                    knowsLayouts ? reply.layoutId() : 0,
                    Optional.empty());
            assertThat(back.get(requests.size() + i)).isEqualTo(left.encode());
        }
    }

    private static XferRequest withoutRegions(XferRequest request) {
        return like(request, List.of(), request.layoutId(), request.own());
    }

    private static XferRequest like(
            XferRequest request, List<MooncakeRegion> regions, long layoutId, Optional<Own> own) {
        return new XferRequest(
                request.hostname(),
                request.port(),
                request.tpSize(),
                request.tpRank(),
                request.ppSize(),
                request.requests(),
                regions,
                layoutId,
                own);
    }

    private static boolean runs(String... arguments) throws InterruptedException {
        try {
            List<String> command = new ArrayList<>(List.of(PYTHON));
            command.addAll(List.of(arguments));
            Process python = new ProcessBuilder(command)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                    .start();
            try {
                return python.waitFor(120, TimeUnit.SECONDS) && python.exitValue() == 0;
            } finally {
                python.destroyForcibly();
            }
        } catch (IOException e) {
            return false;
        }
    }
}
