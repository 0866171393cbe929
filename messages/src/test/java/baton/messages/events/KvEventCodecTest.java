package baton.messages.events;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.KvEvent;
import baton.messages.events.KvEventCodec.Hashes;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/** Bytes of events as vLLM 0.32 writes them. */
class KvEventCodecTest {
    /** vLLM's sha256 of tokens 0 to 15, and of 16 to 31 after them. */
    static final BlockHash FIRST = hash("fe8fa5dda3210d0ca2031e37cbe3b001186773cd1c710beb2d45fcb51d434798");

    static final BlockHash SECOND = hash("8be7aaa33831156d316f1f463ae57e643deb63f42e633e2d631df88815cc4629");
    /** Its last 8 bytes have their highest bit set. */
    static final BlockHash THIRD = hash("00000000000000000000000000000000000000000000000081020304050607ff");

    private static final KvEventCodec INT = new KvEventCodec(Hashes.INT);

    @Test
    void anEventWithoutOptionalFieldsHasNilsWhereVllmHasNoDefaults() {
        byte[] bytes = INT.encode(
                1.5,
                List.of(new KvEvent.BlockStored(
                        List.of(FIRST), Optional.empty(), List.of(0, 127, 128, 70_000), 4, "GPU")),
                0);

        assertThat(bytes)
                .isEqualTo(new Bytes()
                        .hex("93 cb3ff8000000000000 91 88")
                        .text("type")
                        .text("BlockStored")
                        .text("block_hashes")
                        // The number that vLLM publishes.
                        .hex("91 cf" + Long.toHexString(3262291359910021016L))
                        .text("parent_block_hash")
                        .hex("c0")
                        .text("token_ids")
                        .hex("94 00 7f cc80 ce00011170")
                        .text("block_size")
                        .hex("04")
                        .text("lora_id")
                        .hex("c0")
                        .text("medium")
                        .text("GPU")
                        .text("lora_name")
                        .hex("c0")
                        .hex("00")
                        .all());
    }

    @Test
    void anEventWithEverythingHasItsFieldsInVllmsOrder() {
        KvEvent.Place place = new KvEvent.Place(Optional.of(1), Optional.of("LOCAL"), Optional.of("1:fs"));
        byte[] bytes = INT.encode(
                0,
                List.of(new KvEvent.BlockStored(
                        List.of(SECOND, THIRD),
                        Optional.of(FIRST),
                        List.of(1, 2),
                        1,
                        Optional.of(new KvEvent.Lora(3, "adapter")),
                        Optional.of("CPU"),
                        new KvEvent.Details(
                                Optional.of(List.of(List.of("adapter", "salt"), List.of())),
                                place,
                                Optional.of("sliding_window"),
                                Optional.of(512),
                                Optional.of("s")))),
                0);

        assertThat(bytes)
                .isEqualTo(new Bytes()
                        .hex("93 cb0000000000000000 91 8f")
                        .text("type")
                        .text("BlockStored")
                        .text("block_hashes")
                        .hex("92 cf631df88815cc4629 cf81020304050607ff")
                        .text("parent_block_hash")
                        .hex("cf2d45fcb51d434798")
                        .text("token_ids")
                        .hex("92 01 02")
                        .text("block_size")
                        .hex("01")
                        .text("lora_id")
                        .hex("03")
                        .text("medium")
                        .text("CPU")
                        .text("lora_name")
                        .text("adapter")
                        .text("extra_keys")
                        .hex("92 92")
                        .text("adapter")
                        .text("salt")
                        .hex("c0")
                        .text("group_idx")
                        .hex("01")
                        .text("kv_cache_spec_kind")
                        .text("sliding_window")
                        .text("kv_cache_spec_sliding_window")
                        .hex("cd0200")
                        .text("locality")
                        .text("LOCAL")
                        .text("ownership")
                        .text("1:fs")
                        .text("session_id")
                        .text("s")
                        .hex("00")
                        .all());
    }

    @Test
    void eventsOfRemovedAndClearedBlocksAreWritten() {
        byte[] bytes = INT.encode(
                0,
                List.of(
                        new KvEvent.BlockRemoved(List.of(THIRD), Optional.empty(), KvEvent.Place.UNKNOWN),
                        new KvEvent.BlockRemoved(
                                List.of(),
                                Optional.of("STORAGE"),
                                new KvEvent.Place(Optional.of(0), Optional.empty(), Optional.of("x"))),
                        new KvEvent.AllBlocksCleared()),
                2);

        assertThat(bytes)
                .isEqualTo(new Bytes()
                        .hex("93 cb0000000000000000 93 83")
                        .text("type")
                        .text("BlockRemoved")
                        .text("block_hashes")
                        .hex("91 cf81020304050607ff")
                        .text("medium")
                        .hex("c0")
                        .hex("85")
                        .text("type")
                        .text("BlockRemoved")
                        .text("block_hashes")
                        .hex("90")
                        .text("medium")
                        .text("STORAGE")
                        .text("group_idx")
                        .hex("00")
                        .text("ownership")
                        .text("x")
                        .hex("81")
                        .text("type")
                        .text("AllBlocksCleared")
                        .hex("02")
                        .all());
    }

    @Test
    void hashesOfEventsAreBytesWhereTheEnvironmentSaysSo() {
        assertThat(Hashes.of(Map.of())).isEqualTo(Hashes.INT);
        assertThat(Hashes.of(Map.of(KvEventCodec.INT_HASHES, "1"))).isEqualTo(Hashes.INT);
        assertThat(Hashes.of(Map.of(KvEventCodec.INT_HASHES, "0"))).isEqualTo(Hashes.BYTES);
        assertThatThrownBy(() -> Hashes.of(Map.of(KvEventCodec.INT_HASHES, "no")))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES")
                .hasMessageContaining("'no'");

        byte[] bytes =
                new KvEventCodec(Hashes.BYTES).encode(0, List.of(new KvEvent.BlockRemoved(List.of(FIRST), "GPU")), 0);

        assertThat(bytes)
                .isEqualTo(new Bytes()
                        .hex("93 cb0000000000000000 91 83")
                        .text("type")
                        .text("BlockRemoved")
                        .text("block_hashes")
                        .hex("91 c420" + FIRST)
                        .text("medium")
                        .text("GPU")
                        .hex("00")
                        .all());
    }

    static BlockHash hash(String hex) {
        return new BlockHash(part(hex, 0), part(hex, 1), part(hex, 2), part(hex, 3));
    }

    private static long part(String hex, int part) {
        return Long.parseUnsignedLong(hex.substring(16 * part, 16 * part + 16), 16);
    }

    /** Expected bytes. */
    private static final class Bytes {
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        Bytes hex(String hex) {
            bytes.writeBytes(HexFormat.of().parseHex(hex.replace(" ", "")));
            return this;
        }

        /** Adds a text of up to 31 bytes. */
        Bytes text(String text) {
            bytes.write(0xa0 + text.length());
            bytes.writeBytes(text.getBytes(StandardCharsets.US_ASCII));
            return this;
        }

        byte[] all() {
            return bytes.toByteArray();
        }
    }
}
