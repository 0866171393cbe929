package baton.messages.p2p;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.InvalidFieldException;
import baton.kv.KvDigest;
import baton.messages.MsgpackWriter;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pMessage.Checksum;
import baton.messages.p2p.P2pMessage.Get;
import baton.messages.p2p.P2pMessage.GetReply;
import baton.messages.p2p.P2pMessage.New;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.Put;
import baton.messages.p2p.P2pMessage.PutReply;
import baton.messages.p2p.P2pMessage.TensorHead;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The codecs beside the bytes of Python's msgpack, and beside bytes that no peer should write. */
class P2pMessagesTest {
    private static final String UNIQUE = "93923d63113b4b338973f24d19d4bf11";
    private static final String SHARED =
            "cmpl-___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_" + UNIQUE + "-0";
    private static final String TENSOR = SHARED + "#model.layers.0.self_attn.attn";
    private static final TensorHead HEAD =
            new TensorHead("bfloat16", List.of(2L, 16L, 16L, 8L, 128L), Optional.empty());

    @Test
    void messagesHavePythonsBytes() throws IOException {
        byte[] uniqueId = new byte[128];
        for (int i = 0; i < uniqueId.length; i++) {
            uniqueId[i] = (byte) i;
        }
        assertSame(new New(uniqueId), captured("C", "NEW"));
        assertSame(new Put(TENSOR, HEAD), captured("C", "PUT, taken"));
        TensorHead large = new TensorHead("float16", List.of(2L, 70_000L, 16L, 8L, 128L), Optional.empty());
        assertSame(new Put(TENSOR, large), captured("C", "PUT, out of memory"));
        assertSame(new Get(TENSOR), captured("C", "GET, there"));
    }

    @Test
    void answersHavePythonsBytes() throws IOException {
        assertThat(PutReply.decode(captured("S", "PUT, taken"))).isEqualTo(PutReply.TAKEN);
        assertThat(PutReply.TAKEN.encode()).isEqualTo(captured("S", "PUT, taken"));
        assertThat(PutReply.decode(captured("S", "PUT, out of memory"))).isEqualTo(PutReply.OUT_OF_MEMORY);
        assertThat(PutReply.OUT_OF_MEMORY.encode()).isEqualTo(captured("S", "PUT, out of memory"));
        assertThat(GetReply.decode(captured("S", "GET, there"))).isEqualTo(new GetReply.Here(HEAD));
        assertThat(new GetReply.Here(HEAD).encode()).isEqualTo(captured("S", "GET, there"));
        assertThat(GetReply.decode(captured("S", "GET, missing"))).isEqualTo(new GetReply.Missing());
        assertThat(new GetReply.Missing().encode()).isEqualTo(captured("S", "GET, missing"));
    }

    @Test
    void registrationsHavePythonsBytes() throws IOException {
        List<byte[]> captured = captures("C", "registration of a prefill and of a decode instance");
        Registration prefill = new Registration(
                Registration.Kind.PREFILL, new PeerAddress("10.0.1.2", 20_001), new PeerAddress("10.0.1.2", 21_001));
        Registration decode = new Registration(
                Registration.Kind.DECODE, new PeerAddress("10.0.1.3", 20_002), new PeerAddress("10.0.1.3", 22_001));

        assertThat(prefill.encode()).isEqualTo(captured.get(0));
        assertThat(Registration.decode(captured.get(0))).isEqualTo(prefill);
        assertThat(decode.encode()).isEqualTo(captured.get(1));
        assertThat(Registration.decode(captured.get(1))).isEqualTo(decode);
    }

    @ParameterizedTest
    @EnumSource(names = {"CRC32C", "SUM61"})
    void originAndChecksumAreSentAndReceived(KvDigest kind) {
        TensorHead head = new TensorHead("float32", List.of(), Optional.of(new Origin(4, "0123abcd")))
                .withChecksum(new Checksum(kind, 0xfedcba98));

        assertThat(P2pMessage.decode(new Put("t", head).encode())).isEqualTo(new Put("t", head));
        assertThat(GetReply.decode(new GetReply.Here(head).encode())).isEqualTo(new GetReply.Here(head));
    }

    /** Otherwise one flipped bit in a field's name would make a peer without checksums. */
    @ParameterizedTest
    @ValueSource(strings = {"crc32c", "tp_size", "digest"})
    void batonsFieldsAreAllThereOrNone(String lost) {
        TensorHead head = new TensorHead("float32", List.of(), Optional.of(new Origin(4, "0123abcd")))
                .withChecksum(new Checksum(KvDigest.CRC32C, 1));
        byte[] message = new Put("t", head).encode();
        int at = new String(message, StandardCharsets.ISO_8859_1).indexOf(lost);
        message[at] ^= 1;

        assertRefused(P2pMessage::decode, message, "message." + lost, "missing");
    }

    @Test
    void missingAndInvalidFieldsAreNamed() {
        assertRefused(P2pMessage::decode, MsgpackWriter.bytes(p -> p.packMapHeader(0)), "message.cmd", "missing");
        assertRefused(
                P2pMessage::decode,
                MsgpackWriter.bytes(p -> p.packMapHeader(1).packString("cmd").packString("DROP TABLE")),
                "message.cmd",
                "'DROP TABLE'",
                "NEW, PUT or GET");
        assertRefused(
                P2pMessage::decode,
                MsgpackWriter.bytes(p -> p.packMapHeader(1).packString("cmd").packInt(7)),
                "message.cmd",
                "not a text");
        assertRefused(
                P2pMessage::decode,
                MsgpackWriter.bytes(p -> p.packMapHeader(1).packString("cmd").packString("GET")),
                "message.tensor_id",
                "missing");
        assertRefused(P2pMessage::decode, new Get("x".repeat(1025)).encode(), "message.tensor_id", "1025 characters");
        assertRefused(P2pMessage::decode, new New(new byte[129]).encode(), "message.unique_id", "129 bytes");
        assertRefused(P2pMessage::decode, new New(new byte[0]).encode(), "message.unique_id", "0 bytes");
        TensorHead flat = new TensorHead("int64", List.of(1L, 1L, 1L, 1L, 1L, 1L, 1L, 1L, 1L), Optional.empty());
        assertRefused(P2pMessage::decode, new Put("t", flat).encode(), "message.shape", "9 dimensions");
        TensorHead negative = new TensorHead("int64", List.of(-1L), Optional.empty());
        assertRefused(P2pMessage::decode, new Put("t", negative).encode(), "message.shape", "-1");
        assertRefused(PutReply::decode, new byte[] {'2'}, "answer to PUT");
        assertRefused(PutReply::decode, new byte[] {'0', '0'}, "answer to PUT", "2 bytes");
        assertRefused(
                GetReply::decode,
                MsgpackWriter.bytes(p -> p.packMapHeader(1).packString("ret").packInt(0)),
                "answer to GET.dtype");
        assertRefused(
                Registration::decode,
                MsgpackWriter.bytes(p -> p.packMapHeader(3)
                        .packString("type")
                        .packString("X")
                        .packString("http_address")
                        .packString("h:1")
                        .packString("zmq_address")
                        .packString("h:2")),
                "registration.type",
                "'X'");
    }

    @Test
    void invalidMessagesAreRefusedWithoutOtherEffects() {
        long seed = Long.getLong("tests.seed", new Random().nextLong());
        System.out.println("P2pMessagesTest: -Dtests.seed=" + seed);
        Random random = new Random(seed);
        List<byte[]> good = List.of(
                new New(new byte[128]).encode(),
                new Put(TENSOR, HEAD).encode(),
                new Get(TENSOR).encode(),
                new GetReply.Here(HEAD).encode(),
                new Registration(
                                Registration.Kind.PREFILL,
                                new PeerAddress("10.0.1.2", 20_001),
                                new PeerAddress("::1", 21_001))
                        .encode());
        int refused = 0;
        for (int i = 0; i < 20_000; i++) {
            byte[] message = good.get(random.nextInt(good.size())).clone();
            for (int change = random.nextInt(8); change > 0; change--) {
                message[random.nextInt(message.length)] = (byte) random.nextInt();
            }
            byte[] cut = Arrays.copyOf(message, random.nextInt(message.length + 1));
            for (Function<byte[], Object> decoder :
                    List.<Function<byte[], Object>>of(P2pMessage::decode, GetReply::decode, Registration::decode)) {
                try {
                    assertThat(decoder.apply(cut)).isNotNull();
                } catch (InvalidFieldException e) {
                    refused++;
                }
            }
        }
        assertThat(refused).isGreaterThan(20_000);
    }

    @Test
    void aRequestIdIsFoundInsideTheIdsOfEngines() {
        P2pRequestId id =
                new P2pRequestId(new PeerAddress("10.0.1.2", 21_001), new PeerAddress("10.0.1.3", 22_001), UNIQUE);
        assertThat(id.format()).isEqualTo("___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_" + UNIQUE);

        for (String engine : List.of(SHARED, SHARED + "-1f2e3d4c", SHARED + "-12345678", SHARED + "-1f2e3d4c-0")) {
            P2pRequestId.Found found = P2pRequestId.find(engine).orElseThrow();
            assertThat(found.id()).isEqualTo(id);
            assertThat(found.shared()).isEqualTo(SHARED);
            assertThat(found.sequence()).isZero();
            assertThat(found.tensorId("model.layers.0.self_attn.attn")).isEqualTo(TENSOR);
        }
        assertThat(P2pRequestId.find(SHARED + "-1f2e3d4c-3").orElseThrow().sequence())
                .isEqualTo(3);
        String chat = "chatcmpl-" + id.format();
        assertThat(P2pRequestId.find(chat + "-1f2e3d4c").orElseThrow().shared()).isEqualTo(chat);
        assertThat(P2pRequestId.find(chat + "-12345678-2").orElseThrow().shared())
                .isEqualTo(chat);
        assertThat(P2pRequestId.find(id.format()).orElseThrow().shared()).isEqualTo(id.format());
        assertThat(P2pRequestId.find("cmpl-1f2e3d4c-0")).isEmpty();
        assertThat(P2pRequestId.find("")).isEmpty();
    }

    @Test
    void hostsMayBeNamesAndSixthVersionAddresses() {
        P2pRequestId id =
                new P2pRequestId(new PeerAddress("::1", 1), new PeerAddress("node-7.gpu_rack.example", 65_535), UNIQUE);

        assertThat(id.format()).contains("___prefill_addr_[::1]:1___decode_addr_node-7.gpu_rack.example:65535_");
        assertThat(P2pRequestId.find("cmpl-" + id.format() + "-0").orElseThrow().id())
                .isEqualTo(id);
        assertThat(id.prefill().above(3)).isEqualTo(new PeerAddress("::1", 4));
        assertThatThrownBy(() -> id.decode().above(1))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessageContaining("65535");
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "___prefill_addr_10.0.0.1:1",
                "___decode_addr_10.0.0.1:1_" + UNIQUE,
                "___prefill_addr_10.0.0.1___decode_addr_10.0.0.2:2_" + UNIQUE,
                "___prefill_addr_10.0.0.1:0___decode_addr_10.0.0.2:2_" + UNIQUE,
                "___prefill_addr_10.0.0.1:65536___decode_addr_10.0.0.2:2_" + UNIQUE,
                "___prefill_addr_10.0.0.1:99999999999___decode_addr_10.0.0.2:2_" + UNIQUE,
                "___prefill_addr_http://x/:80___decode_addr_10.0.0.2:2_" + UNIQUE,
                "___prefill_addr_a@b:80___decode_addr_10.0.0.2:2_" + UNIQUE,
                "___prefill_addr_h:1___decode_addr_h:2_" + UNIQUE + "x",
                "___prefill_addr_h:1___decode_addr_h:2_1234",
                "___prefill_addr_h:1___prefill_addr_h:1___decode_addr_h:2_" + UNIQUE,
                "___prefill_addr_h\n:1___decode_addr_h:2_" + UNIQUE,
            })
    void hostileIdsAreRefused(String id) {
        assertThatThrownBy(() -> P2pRequestId.find(id))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessageContaining("request id");
    }

    private static void assertSame(P2pMessage message, byte[] captured) {
        assertThat(message.encode()).isEqualTo(captured);
        assertThat(P2pMessage.decode(captured)).isEqualTo(message);
    }

    private static void assertRefused(Function<byte[], Object> decoder, byte[] message, String... parts) {
        assertThatThrownBy(() -> decoder.apply(message))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessageContainingAll(parts);
    }

    private static byte[] captured(String side, String after) throws IOException {
        return captures(side, after).getFirst();
    }

    /** The messages of one side that follow a comment; they are single frames. */
    private static List<byte[]> captures(String side, String after) throws IOException {
        try (InputStream in = Objects.requireNonNull(P2pMessagesTest.class.getResourceAsStream("pyzmq-msgpack.txt"))) {
            List<String> lines = new String(in.readAllBytes(), StandardCharsets.US_ASCII)
                    .lines()
                    .toList();
            Stream<String> following = lines.subList(lines.indexOf("# " + after) + 1, lines.size()).stream()
                    .takeWhile(line -> !line.startsWith("#"));
            return following
                    .filter(line -> line.startsWith(side))
                    .map(line -> HexFormat.of().parseHex(line.substring(2)))
                    .peek(frame -> assertThat(frame[1] & 0xff).isEqualTo(frame.length - 2))
                    .map(frame -> Arrays.copyOfRange(frame, 2, frame.length))
                    .collect(Collectors.toList());
        }
    }
}
