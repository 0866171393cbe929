package baton.messages.events;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.BlockHash;
import baton.kv.InvalidFieldException;
import baton.kv.KvEvent;
import java.io.IOException;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;

class KvEventReaderTest {
    private static BlockHash hash(int last) {
        return new BlockHash(1, 2, 3, 0xf0f0f0f0f0f0f000L + last);
    }

    @ParameterizedTest
    @EnumSource
    void eventsAreReadAsTheyAreWritten(KvEventCodec.Hashes form) {
        KvEvent.Place place = new KvEvent.Place(Optional.of(2), Optional.of("LOCAL"), Optional.of("fs"));
        byte[] batch = new KvEventCodec(form)
                .encode(
                        1.5,
                        List.of(
                                new KvEvent.BlockStored(
                                        List.of(hash(1), hash(2)),
                                        Optional.of(hash(0)),
                                        List.of(1, 2, 3, 70_000),
                                        2,
                                        Optional.of(new KvEvent.Lora(1, "lora")),
                                        Optional.of("GPU"),
                                        new KvEvent.Details(
                                                Optional.of(List.of(List.of("lora", "salt"), List.of())),
                                                place,
                                                Optional.of("full_attention"),
                                                Optional.of(7),
                                                Optional.of("session"))),
                                new KvEvent.BlockRemoved(List.of(hash(1)), Optional.of("GPU"), place),
                                new KvEvent.AllBlocksCleared()),
                        3);

        List<ReceivedKvEvent> read = KvEventReader.read(batch);

        assertThat(read).hasSize(3);
        ReceivedKvEvent.Stored stored = (ReceivedKvEvent.Stored) read.get(0);
        assertThat(stored.hashes()).containsExactly(0xf0f0f0f0f0f0f001L, 0xf0f0f0f0f0f0f002L);
        assertThat(stored.parent()).hasValue(0xf0f0f0f0f0f0f000L);
        assertThat(stored.tokens()).containsExactly(1, 2, 3, 70_000);
        assertThat(stored.blockSize()).isEqualTo(2);
        assertThat(stored.extra()).containsExactly(ExtraKeys.of(List.of("lora", "salt")), 0);
        assertThat(stored.kind()).isEqualTo("full_attention");
        assertThat(stored.lora()).isEqualTo("lora");
        ReceivedKvEvent.Removed removed = (ReceivedKvEvent.Removed) read.get(1);
        assertThat(removed.hashes()).containsExactly(0xf0f0f0f0f0f0f001L);
        assertThat(removed.place()).isEqualTo(stored.place());
        assertThat(read.get(2)).isEqualTo(new ReceivedKvEvent.Cleared());
    }

    /** {@code lookahead_token_ids} of vLLM 0.33. */
    @Test
    void tokensBehindABlockFollowItsOwn() throws Exception {
        ReceivedKvEvent.Stored stored =
                (ReceivedKvEvent.Stored) KvEventReader.read(withLookahead(new int[][] {{3}, {5}}))
                        .getFirst();
        assertThat(stored.lookahead()).isEqualTo(1);
        assertThat(stored.tokens()).containsExactly(1, 2, 3, 3, 4, 5);
        for (int[][] wrong : new int[][][] {{{3}}, {{3}, {5, 6}}}) {
            byte[] batch = withLookahead(wrong);
            assertThatThrownBy(() -> KvEventReader.read(batch))
                    .isInstanceOf(InvalidFieldException.class)
                    .hasMessageContaining("lookahead_token_ids");
        }
    }

    private static byte[] withLookahead(int[][] behind) throws IOException {
        try (MessageBufferPacker out = MessagePack.newDefaultBufferPacker()) {
            out.packArrayHeader(2).packDouble(1.5).packArrayHeader(1).packMapHeader(5);
            out.packString("type").packString("BlockStored");
            out.packString("lookahead_token_ids").packArrayHeader(behind.length);
            for (int[] each : behind) {
                out.packArrayHeader(each.length);
                for (int token : each) {
                    out.packInt(token);
                }
            }
            out.packString("block_hashes").packArrayHeader(2).packInt(11).packInt(12);
            out.packString("token_ids")
                    .packArrayHeader(4)
                    .packInt(1)
                    .packInt(2)
                    .packInt(3)
                    .packInt(4);
            out.packString("block_size").packInt(2);
            return out.toByteArray();
        }
    }

    @Test
    void keysInAnotherOrderAreOtherKeys() {
        assertThat(List.of(
                        ExtraKeys.of(List.of("a", "b")),
                        ExtraKeys.of(List.of("b", "a")),
                        ExtraKeys.of(List.of("ab")),
                        ExtraKeys.of(List.of("")),
                        ExtraKeys.of(List.of())))
                .doesNotHaveDuplicates();
    }

    @Test
    void aBatchThatIsNoneIsRefusedWithItsField() {
        // [1.0, [{"type": "X"}]]
        String unknown = "92cb3ff0000000000000" + "91" + "81a474797065a158";
        assertThatThrownBy(() -> KvEventReader.read(HexFormat.of().parseHex(unknown)))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessageContaining("'X', must be BlockStored, BlockRemoved or AllBlocksCleared");
        assertThatThrownBy(() -> KvEventReader.read(new byte[] {(byte) 0xc0}))
                .isInstanceOf(InvalidFieldException.class);
        assertThatThrownBy(() -> KvEventReader.read(new byte[0])).isInstanceOf(InvalidFieldException.class);
        // Stored without a block size.
        String sizeless = "92cb3ff0000000000000" + "91" + "81a474797065ab426c6f636b53746f726564";
        assertThatThrownBy(() -> KvEventReader.read(HexFormat.of().parseHex(sizeless)))
                .hasMessageContaining("block_size");
    }
}
