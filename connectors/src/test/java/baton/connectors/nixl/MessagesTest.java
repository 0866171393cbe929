package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.nixl.NixlHandshake.BatonFacts;
import baton.connectors.nixl.NixlHandshake.Metadata;
import baton.connectors.nixl.NixlHandshake.Payload;
import baton.connectors.nixl.NixlHandshake.Regions;
import baton.connectors.onesided.BlockChecksums.Table;
import baton.connectors.onesided.PeerNotification;
import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.Heartbeat;
import baton.connectors.onesided.PeerNotification.Instance;
import baton.connectors.onesided.PeerNotification.PushAccepted;
import baton.connectors.onesided.PeerNotification.PushCancel;
import baton.connectors.onesided.PeerNotification.PushDone;
import baton.connectors.onesided.PeerNotification.PushFailed;
import baton.connectors.onesided.PeerNotification.PushOver;
import baton.connectors.onesided.PeerNotification.PushPart;
import baton.connectors.onesided.PeerNotification.PushRegistration;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.KvDigest;
import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Random;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Messages beside the bytes that msgspec 0.22, which vLLM uses, writes for the same values. */
@Timeout(300)
class MessagesTest {
    private static final NixlNotification CODEC = new NixlNotification();
    private static final String QUESTION = "93c40c6765745f6d6574615f6d73670001";
    private static final String CLOCK = "cb40fe240c9fbe76c9";
    private static final String METADATA =
            "de0015a9656e67696e655f6964a8656e67696e652d31ae6167656e745f6d65746164617461c407006167656e74ffb36b765f636163686573"
                    + "5f626173655f6164647292cf00007f0000000000cf8000000000000005a96465766963655f696400aa6e756d5f626c6f636b73cd03e8aa62"
                    + "6c6f636b5f6c656e7392cd8000cd8000ad626c6f636b5f7374726964657392ce00010000ce00010000af6b765f63616368655f6c61796f75"
                    + "74a54c42484e43aa626c6f636b5f73697a6510a973736d5f73697a6573920000b16174746e5f6261636b656e645f6e616d65aa464c415348"
                    + "5f4154544ed924706879736963616c5f626c6f636b735f7065725f6c6f676963616c5f6b765f626c6f636b01b1726567696f6e5f6e756d5f"
                    + "626c6f636b7392cd03e8cd03e8b0726567696f6e5f67726f75705f696473920000ac726567696f6e5f6e616d657392bd6d6f64656c2e6c61"
                    + "796572732e302e73656c665f6174746e2e6174746ebd6d6f64656c2e6c61796572732e312e73656c665f6174746e2e6174746eb072656769"
                    + "6f6e5f6d656d5f747970657392a44452414da44452414da86463705f73697a6501a87063705f73697a6501ad706c655f626c6f636b5f6c65"
                    + "6ec0ae726567696f6e5f6d656d6265727390b57061636b65645f6d656d6265725f6c61796f75747380";
    private static final String PAYLOAD = "82b2636f6d7061746962696c6974795f68617368d940" + "6162".repeat(32)
            + "b46167656e745f6d657461646174615f6279746573c501e9" + METADATA;
    private static final String PUSH = "505553485f5245473a8baa726571756573745f6964b1636d706c2d312d302d3031323361626364"
            + "b06465636f64655f656e67696e655f6964a3642d31ab6465636f64655f686f7374a93132372e302e302e31ab6465636f64655f706f7274cd15e1"
            + "ae6465636f64655f74705f73697a6502af6c6f63616c5f626c6f636b5f69647391930102cd012c"
            + "b072656d6f74655f656e67696e655f6964a3702d31ab72656d6f74655f686f7374a96c6f63616c686f7374ab72656d6f74655f706f7274cd15e0"
            + "ae72656d6f74655f74705f73697a6501ae72656d6f74655f70705f73697a6501";

    private static final String PUSH_WITH_PERMIT =
            PUSH.replace("3a8baa", "3a8caa") + "ac6261746f6e5f7065726d6974cffffffffffffffffe";

    private static final Metadata OF_VLLM = new Metadata(
            "engine-1",
            new byte[] {0, 'a', 'g', 'e', 'n', 't', -1},
            0,
            1000,
            "LBHNC",
            16,
            "FLASH_ATTN",
            1,
            new Regions(
                    new long[] {0x7f0000000000L, Long.MIN_VALUE + 5},
                    new long[] {32768, 32768},
                    new long[] {65536, 65536},
                    Optional.of(List.of("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn")),
                    Optional.of(List.of("DRAM", "DRAM")),
                    Optional.of(new int[] {0, 0})),
            Optional.empty());

    @Test
    void theHandshakesQuestionIsVllms() {
        assertThat(NixlHandshake.question(new Rank(0, 1))).isEqualTo(hex(QUESTION));
        assertThat(NixlHandshake.readQuestion(hex(QUESTION))).isEqualTo(new Rank(0, 1));
    }

    @Test
    void theHandshakesClockIsVllms() {
        assertThat(NixlHandshake.clock(123456.789)).isEqualTo(hex(CLOCK));
        assertThat(NixlHandshake.readClock(hex(CLOCK))).isEqualTo(123456.789);
        assertThat(NixlHandshake.readClock(hex("cd03e8"))).isEqualTo(1000);
    }

    @Test
    void theHandshakesPayloadAndMetadataAreVllms() {
        assertThat(OF_VLLM.encode()).isEqualTo(hex(METADATA));
        Payload payload = new Payload("ab".repeat(32), hex(METADATA));
        assertThat(payload.encode()).isEqualTo(hex(PAYLOAD));

        Payload read = Payload.read(hex(PAYLOAD));
        assertThat(read).usingRecursiveComparison().isEqualTo(payload);
        assertThat(Metadata.read(read.metadata())).usingRecursiveComparison().isEqualTo(OF_VLLM);
    }

    @Test
    void batonsHandshakeFactsHaveAFieldOfTheirOwn() {
        for (Optional<Table> checksums : List.of(
                Optional.<Table>empty(),
                Optional.of(new Table(KvDigest.CRC32C, 0x7fff_0000_1000L)),
                Optional.of(new Table(KvDigest.SUM61, 0x7fff_0000_1000L)),
                Optional.of(new Table(KvDigest.NONE, 0x7fff_0000_1000L)))) {
            Metadata ofBaton = ofBaton(checksums);
            byte[] message = ofBaton.encode();
            assertThat(Metadata.read(message)).usingRecursiveComparison().isEqualTo(ofBaton);
            // vLLM's fields precede it, unchanged.
            byte[] known = hex(METADATA);
            assertThat(Arrays.copyOfRange(message, 3, known.length))
                    .isEqualTo(Arrays.copyOfRange(known, 3, known.length));
        }
    }

    @Test
    void checksumsOfAnotherKindHaveFieldsThatInstancesOfBeforeSkip() {
        String crc32c = text(ofBaton(Optional.of(new Table(KvDigest.CRC32C, 1L << 33))));
        assertThat(crc32c).endsWith(HexFormat.of().formatHex(text("seals")) + "cf0000000200000000");
        assertThat(crc32c).doesNotContain(HexFormat.of().formatHex(text("digest")));
        String sum61 = text(ofBaton(Optional.of(new Table(KvDigest.SUM61, 1L << 33))));
        assertThat(sum61)
                .endsWith(HexFormat.of().formatHex(text("digests")) + "cf0000000200000000a6"
                        + HexFormat.of().formatHex(text("digest")) + "a5"
                        + HexFormat.of().formatHex(text("sum61")));
        assertThat(sum61).doesNotContain(HexFormat.of().formatHex(text("seals")));
        refused(
                Metadata::read,
                sum61.replace(
                        HexFormat.of().formatHex(text("sum61")), HexFormat.of().formatHex(text("sum62"))),
                "NixlAgentMetadata.baton.digest: is sum62, must be one of none, crc32c, sum61");
        refused(
                Metadata::read,
                sum61.replace(
                        "a6" + HexFormat.of().formatHex(text("digest")),
                        "a6" + HexFormat.of().formatHex(text("digesx"))),
                "NixlAgentMetadata.baton.digest: is missing");
    }

    private static String text(Metadata metadata) {
        return HexFormat.of().formatHex(metadata.encode());
    }

    @Test
    void unknownHandshakeFieldsAreSkipped() {
        byte[] metadata = hex(METADATA);
        // Among them the fields of later versions of vLLM.
        byte[] later = join(
                hex("de0018"),
                Arrays.copyOfRange(metadata, 3, metadata.length),
                hex("a5"),
                text("later"),
                hex("9203c0"),
                hex("a4"),
                text("size"),
                hex("01"),
                hex("a6"),
                text("nested"),
                hex("82a16193c3c2cb3ff0000000000000a162c70301aabbcc"));
        assertThat(Metadata.read(later)).usingRecursiveComparison().isEqualTo(OF_VLLM);
    }

    @Test
    void notificationsAreVllms() {
        same(new Completion("cmpl-1:2-0", 4), text("cmpl-1:2-0:4"));
        same(new Heartbeat(List.of("a", "b")), text("HB:a,b"));
        same(new Heartbeat(List.of()), text("HB:"));
        same(registration(OptionalLong.empty()), hex(PUSH));
        same(registration(OptionalLong.of(-2)), hex(PUSH_WITH_PERMIT));
        // A list for each group of layers.
        same(
                registration(OptionalLong.empty(), new int[] {1, 2}, new int[] {300}),
                hex(PUSH.replace("91930102cd012c", "9292010291cd012c")));
    }

    @Test
    void pushNotificationsBetweenBatonInstancesAreTexts() {
        String attempt = "cmpl:1#0123456789abcdef";
        same(new PushPart(attempt, 0, 3, 1, 12), text("PUSH_PART:" + attempt + ":0:3:1:12"));
        same(
                new PushDone(attempt, "f00d", new int[] {7, 0}, new long[] {1, Long.MAX_VALUE}),
                text("PUSH_DONE:" + attempt + ":f00d:7=1,0=9223372036854775807"));
        same(new PushAccepted(attempt), text("PUSH_ACCEPTED:" + attempt));
        same(new PushFailed(attempt), text("PUSH_FAILED:" + attempt));
        same(new PushCancel(attempt), text("PUSH_CANCEL:" + attempt));
        same(new PushOver(new Completion("cmpl-1:2-0", 4)), text("PUSH_OVER:cmpl-1:2-0:4"));
    }

    @Test
    void aPushThatListsNoBlocksHasFailed() {
        for (String list : List.of("", "1", "1=", "=1", "1=2,", "-1=2", "1=99999999999999999999", "1=2;3=4")) {
            assertThat(CODEC.read(text("PUSH_DONE:r:f00d:" + list))).as(list).isEqualTo(new PushFailed("r"));
        }
    }

    @Test
    void garbageBehindAPushPrefixIsRefused() {
        for (String text : List.of(
                "PUSH_DONE:",
                "PUSH_DONE:r:1=2",
                "PUSH_PART:r:0:1:2",
                "PUSH_PART:r:0:1:2:x",
                "PUSH_PART:r:-1:1:2:3",
                "PUSH_PART:r:0:1:2:99999999999",
                "PUSH_OVER:r",
                "PUSH_OVER:r:0",
                "PUSH_OVER:HB:r")) {
            assertThatThrownBy(() -> CODEC.read(text(text)))
                    .as(text)
                    .isInstanceOf(InvalidFieldException.class)
                    .hasMessageContaining("notification: is '");
        }
    }

    private static PushRegistration registration(OptionalLong permit) {
        return registration(permit, new int[] {1, 2, 300});
    }

    private static PushRegistration registration(OptionalLong permit, int[]... blocks) {
        return new PushRegistration(
                "cmpl-1-0-0123abcd",
                new Instance("d-1", "127.0.0.1", 5601, 2),
                List.of(blocks),
                new Instance("p-1", "localhost", 5600, 1),
                1,
                permit);
    }

    private static void same(PeerNotification notification, byte[] bytes) {
        assertThat(CODEC.encode(notification)).isEqualTo(bytes);
        assertThat(CODEC.read(bytes)).usingRecursiveComparison().isEqualTo(notification);
    }

    @Test
    void anInvalidNotificationIsRefused() {
        for (String text :
                List.of("", ":", ":1", "a", "a:", "a:b", "a:0", "a:-1", "a:99999999999", "\u0000\u001b[2J")) {
            assertThatThrownBy(() -> CODEC.read(text(text)))
                    .isInstanceOf(InvalidFieldException.class)
                    .hasMessageContaining("notification: is '")
                    .hasMessageNotContaining("\u001b");
        }
        refused(CODEC::read, "505553485f5245473a", "PUSH_REG: is not a map");
        refused(CODEC::read, "505553485f5245473a80", "PUSH_REG.request_id: is missing");
        refused(CODEC::read, PUSH.replace("cd15e1", "cd0000"), "PUSH_REG.decode_port: is 0, must be 1 to 65535");
        refused(CODEC::read, PUSH.replace("91930102cd012c", "920102"), "PUSH_REG.local_block_ids: is not an array");
        refused(CODEC::read, PUSH.replace("930102cd012c", "9301ffcd012c"), "PUSH_REG.local_block_ids: is -1");
        refused(CODEC::read, PUSH_WITH_PERMIT.replace("cffffffffffffffffe", "c0"), "PUSH_REG.baton_permit: is not");
    }

    @Test
    void handshakeErrorsNameTheField() {
        refused(
                NixlHandshake::readQuestion,
                "92c40c6765745f6d6574615f6d736700",
                "question: has 2 elements, must have 3");
        refused(NixlHandshake::readQuestion, QUESTION.replace("6765", "6764"), "must be get_meta_msg");
        refused(
                NixlHandshake::readQuestion,
                QUESTION.replace("730067", "67ff67").replace("670001", "67ff01"),
                "pp_rank: is -1");
        refused(NixlHandshake::readQuestion, QUESTION + "00", "question: is followed by 1 bytes");
        refused(NixlHandshake::readClock, "a161", "clock: is not a number");
        refused(Payload::read, "80", "NixlHandshakePayload.compatibility_hash: is missing");
        refused(Payload::read, PAYLOAD.replace("d940", "db7fffffff"), "announces 2147483647 bytes");
        refused(Payload::read, PAYLOAD.replace("c501e9", "c6ffffffff"), "agent_metadata_bytes: is not bytes");
        refused(
                Metadata::read,
                METADATA.replace("aa6e756d5f626c6f636b73cd03e8", "aa6e756d5f626c6f636b7300"),
                "num_blocks: is 0");
        refused(Metadata::read, METADATA.replace("92cd8000cd8000", "91cd8000"), "block_lens: has 1 elements");
        refused(
                Metadata::read,
                METADATA.replace("a86463705f73697a6501", "a86463705f73697a6502"),
                "NixlAgentMetadata.dcp_size: is 2, must be 1");
        refused(
                Metadata::read,
                METADATA.replace("92cd8000cd8000", "dd7fffffff"),
                "block_lens: announces 2147483647 elements");
        refused(
                Metadata::read,
                METADATA.replace("a8656e67696e652d31", "a8656e67696e65ff31"),
                "engine_id: is not UTF-8");
        refused(Metadata::read, "82a161c0a161c0", "NixlAgentMetadata.a: is given twice");
        refused(Metadata::read, "de0200", "has 512 fields");
        refused(Metadata::read, "81a161" + "91".repeat(100) + "c0", "NixlAgentMetadata.a: is nested more than 16 deep");
        refused(Metadata::read, "81a161" + "81".repeat(10_000), "NixlAgentMetadata.a");
        refused(Metadata::read, "81a161dfffffffff", "NixlAgentMetadata.a");
        refused(Metadata::read, "81a162dd7fffffff", "NixlAgentMetadata.b: announces 2147483647 elements in 0 bytes");
        byte[] ofBaton = ofBaton(Optional.empty()).encode();
        String dtype = HexFormat.of().formatHex(ofBaton).replace("a862666c6f61743136", "a862666c6f61743137");
        refused(Metadata::read, dtype, "NixlAgentMetadata.baton.dtype: unsupported value 'bfloat17'");
    }

    /** Mutilated messages are read or refused, in no time and no memory to speak of. */
    @Test
    void mutilatedHandshakesAndNotificationsAreReadOrRefused() {
        long seed = Long.getLong("tests.seed", 7);
        Random random = new Random(seed);
        List<byte[]> messages = List.of(
                hex(QUESTION),
                hex(CLOCK),
                hex(PAYLOAD),
                hex(METADATA),
                hex(PUSH_WITH_PERMIT),
                ofBaton(Optional.of(new Table(KvDigest.SUM61, 5))).encode(),
                text("HB:a,b"),
                text("r:1"),
                text("PUSH_PART:r:0:1:2:3"),
                text("PUSH_DONE:r:f00d:1=2,3=4"),
                text("PUSH_OVER:r:1"),
                text("PUSH_ACCEPTED:r"),
                text("PUSH_CANCEL:r"));
        List<Consumer<byte[]>> readers = List.of(
                NixlHandshake::readQuestion,
                NixlHandshake::readClock,
                Payload::read,
                Metadata::read,
                CODEC::read,
                Metadata::read,
                CODEC::read,
                CODEC::read,
                CODEC::read,
                CODEC::read,
                CODEC::read,
                CODEC::read,
                CODEC::read);
        byte[] headers = hex("c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf8f9fbfc0c1c2c3ff7fe0");
        int refused = 0;
        for (int i = 0; i < 100_000; i++) {
            int which = random.nextInt(messages.size());
            byte[] message = messages.get(which).clone();
            for (int changes = random.nextInt(4); changes > 0; changes--) {
                int at = random.nextInt(message.length);
                message[at] = random.nextBoolean() ? headers[random.nextInt(headers.length)] : (byte) random.nextInt();
            }
            message = switch (random.nextInt(4)) {
                case 0 -> Arrays.copyOf(message, random.nextInt(message.length + 1));
                case 1 -> join(message, Arrays.copyOf(headers, random.nextInt(headers.length)));
                default -> message;
            };
            try {
                readers.get(which).accept(message);
            } catch (InvalidFieldException e) {
                refused++;
                assertThat(e.field()).as("seed %d, message %d", seed, i).isNotBlank();
            } catch (RuntimeException e) {
                throw new AssertionError(
                        "-Dtests.seed=" + seed + ", message " + i + ": "
                                + HexFormat.of().formatHex(message),
                        e);
            }
        }
        assertThat(refused).isGreaterThan(20_000);
    }

    private static Metadata ofBaton(Optional<Table> checksums) {
        BatonFacts facts = new BatonFacts(
                "cafe",
                "epoch-7",
                new byte[] {1, 2, 3},
                "f00d",
                new KvLayout(16, 4, 64, 16, DType.BF16),
                8,
                new Rank(0, 1),
                2,
                1,
                checksums);
        return new Metadata(
                OF_VLLM.engineId(),
                OF_VLLM.agent(),
                OF_VLLM.deviceId(),
                OF_VLLM.blocks(),
                OF_VLLM.cacheLayout(),
                OF_VLLM.blockSize(),
                OF_VLLM.attentionBackend(),
                OF_VLLM.pagesPerBlock(),
                OF_VLLM.regions(),
                Optional.of(facts));
    }

    private static void refused(Consumer<byte[]> reader, String message, String words) {
        assertThatThrownBy(() -> reader.accept(hex(message)))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessageContaining(words);
    }

    private static byte[] join(byte[]... parts) {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (byte[] part : parts) {
            all.writeBytes(part);
        }
        return all.toByteArray();
    }

    private static byte[] hex(String hex) {
        return HexFormat.of().parseHex(hex);
    }

    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
