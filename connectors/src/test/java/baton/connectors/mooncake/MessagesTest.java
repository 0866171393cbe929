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
    private static final Own OWN = new Own("a.0.0.1", "xfer-1", "version=1", new byte[] {1, -1}, false);
    private static final Written WRITTEN = new Written("digest", new int[] {0, 1}, 16, 32, new int[] {-1, 7});

    private static XferRequest request(Optional<Own> own, int stages) {
        try (Arena arena = Arena.ofConfined()) {
            KvCache cache = new KvCache(
                    arena.allocate(3 * LAYOUT.blockBytes(), 64),
                    LAYOUT,
                    3,
                    List.of("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"));
            Map<String, Wanted> wanted = new LinkedHashMap<>();
            wanted.put("cmpl-1", new Wanted("xfer-1", List.of(new int[] {2, 0, 70_000})));
            wanted.put("cmpl-2", new Wanted("xfer-2", List.of(new int[0])));
            return new XferRequest("10.0.0.1", 15_000, 2, 1, stages, wanted, MooncakeRegion.of(cache), own);
        }
    }

    private static void assertSame(XferRequest read, XferRequest sent) {
        assertThat(read.encode()).isEqualTo(sent.encode());
        assertThat(read.regions()).isEqualTo(sent.regions());
        assertThat(read.requests().keySet()).containsExactly("cmpl-1", "cmpl-2");
        assertThat(read.requests().values()).extracting(Wanted::isRelease).containsExactly(false, true);
        assertThat(read.own().map(Own::attempt)).isEqualTo(sent.own().map(Own::attempt));
    }

    private static List<XferReply> replies() {
        return List.of(
                new XferReply(Status.FINISH, List.of("a", "b"), List.of("c"), Optional.of("why"), Optional.empty()),
                new XferReply(Status.CONTINUE, List.of("a"), List.of(), Optional.empty(), Optional.empty()),
                new XferReply(Status.FINISH, List.of("a"), List.of(), Optional.empty(), Optional.of(WRITTEN)),
                XferReply.error("no"));
    }

    @Test
    void whatIsEncodedIsDecoded() {
        for (int stages : new int[] {1, 2}) {
            for (Optional<Own> own : List.of(Optional.<Own>empty(), Optional.of(OWN))) {
                XferRequest request = request(own, stages);
                assertSame(XferRequest.decode(request.encode()), request);
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
        XferRequest plain = request(Optional.empty(), 1);
        XferRequest own = request(Optional.of(OWN), 2);
        lines.append("request ")
                .append(HexFormat.of().formatHex(plain.encode()))
                .append('\n');
        lines.append("request ").append(HexFormat.of().formatHex(own.encode())).append('\n');
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
        List<byte[]> back = Files.readAllLines(directory.resolve("out")).stream()
                .filter(line -> line.startsWith("again "))
                .map(line -> HexFormat.of().parseHex(line.substring("again ".length())))
                .toList();
        assertThat(back).hasSize(6);
        // vLLM leaves out what only Baton sends, and otherwise has the same bytes.
        assertThat(back.get(0)).isEqualTo(plain.encode());
        assertThat(back.get(1)).isEqualTo(without(own).encode());
        for (int i = 0; i < replies().size(); i++) {
            XferReply reply = replies().get(i);
            XferReply without =
                    new XferReply(reply.status(), reply.ok(), reply.failed(), reply.error(), Optional.empty());
            assertThat(back.get(2 + i)).isEqualTo(without.encode());
        }
    }

    private static XferRequest without(XferRequest own) {
        return new XferRequest(
                own.hostname(),
                own.port(),
                own.tpSize(),
                own.tpRank(),
                own.ppSize(),
                own.requests(),
                own.regions(),
                Optional.empty());
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
