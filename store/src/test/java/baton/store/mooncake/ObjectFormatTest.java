package baton.store.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.store.StoreFormat;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.HexFormat;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Keys and bytes are those that vLLM 0.32's {@code PoolKey} and {@code LBHNCStoreLayout} made of the same hash and the same cache. */
class ObjectFormatTest {
    /** Bytes 0 to 31. */
    private static final BlockHash HASH =
            new BlockHash(0x0001020304050607L, 0x08090a0b0c0d0e0fL, 0x1011121314151617L, 0x18191a1b1c1d1e1fL);

    private static final String HEX = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    /** 2 layers, 4 heads, 2 tokens, 4 bytes of key and value: the golden cache's, with elements of 2 bytes. */
    private static final StoreFormat FORMAT =
            new StoreFormat(new ModelFingerprint("org/m", "00"), new KvLayout(2, 4, 1, 2, DType.BF16), 1, 0, 1);

    private static ObjectLayout.Share share(int pipeline, int tensor) {
        return new ObjectLayout.Share(pipeline, tensor, 1, new long[] {0}, 1);
    }

    @Test
    void keysAreVllms() {
        assertThat(ObjectKeys.key(ObjectKeys.of("", "org/Qwen3-0.6B", "").of(share(0, 0)), HASH))
                .isEqualTo("Qwen3-0.6B@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" + HEX);
        assertThat(ObjectKeys.key(
                        ObjectKeys.of("team a", "/models/Qwen3-0.6B//", "").of(share(1, 1)), HASH))
                .isEqualTo("team a@Qwen3-0.6B@tp_rank:1@pcp0@dcp0@pp_rank:1@group:0@" + HEX);
        StoreFormat format =
                new StoreFormat(new ModelFingerprint("x", "00"), new KvLayout(4, 8, 64, 16, DType.BF16), 1, 0, 2);
        ObjectFormat objects = ObjectFormat.ofVllm(format, new MooncakeNames("", "Qwen3-0.6B", 4, 2));
        assertThat(objects.name(7, HASH))
                .isEqualTo("Qwen3-0.6B@store_tp:4@store_pp:2@store_format:tp_shared_lbhnc@tp_rank:3@pcp0@dcp0"
                        + "@pp_rank:1@group:0@" + HEX);
        StoreFormat oneHead =
                new StoreFormat(new ModelFingerprint("x", "00"), new KvLayout(4, 1, 64, 16, DType.BF16), 1, 0, 1);
        assertThat(ObjectFormat.ofVllm(oneHead, new MooncakeNames("", "Qwen3-0.6B", 1, 1))
                        .name(0, HASH))
                .isEqualTo("Qwen3-0.6B@store_pp:1@store_format:tp_shared_mqa@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@"
                        + HEX);
    }

    /** Block 1 of a cache of 3 blocks with bytes that count up in the order layer, block, head, token, content. */
    private static MemorySegment value() {
        byte[] value = new byte[64];
        for (int layer = 0; layer < 2; layer++) {
            for (int i = 0; i < 32; i++) {
                value[layer * 32 + i] = (byte) ((layer * 3 + 1) * 32 + i);
            }
        }
        return MemorySegment.ofArray(value);
    }

    private static String objectOfVllm(int tensorShares, int share) {
        ObjectFormat objects = ObjectFormat.ofVllm(FORMAT, new MooncakeNames("", "m", tensorShares, 1));
        MemorySegment object = objects.object(MemorySegment.ofArray(new byte[1024]), 0, share);
        objects.gather(share, value(), object, HASH);
        return HexFormat.of().formatHex(object.toArray(ValueLayout.JAVA_BYTE));
    }

    @Test
    void bytesAreVllms() {
        assertThat(objectOfVllm(2, 0)).isEqualTo("202122232425262728292a2b2c2d2e2f808182838485868788898a8b8c8d8e8f");
        assertThat(objectOfVllm(2, 1)).isEqualTo("303132333435363738393a3b3c3d3e3f909192939495969798999a9b9c9d9e9f");
        assertThat(objectOfVllm(4, 2)).isEqualTo("30313233343536379091929394959697");
        assertThat(objectOfVllm(4, 3)).isEqualTo("38393a3b3c3d3e3f98999a9b9c9d9e9f");
    }

    @Test
    void sharesTogetherAreTheValue() {
        StoreFormat chunks = new StoreFormat(FORMAT.model(), new KvLayout(5, 4, 3, 6, DType.BF16), 3, 2, 2);
        byte[] value = new byte[(int) chunks.valueBytes()];
        for (int i = 0; i < value.length; i++) {
            value[i] = (byte) (i * 7 + i / 251);
        }
        for (int tensor : List.of(1, 2, 4)) {
            for (int pipeline : List.of(1, 2, 5)) {
                ObjectFormat objects = ObjectFormat.ofRest(chunks, new MooncakeNames("", "m", tensor, pipeline));
                MemorySegment memory = MemorySegment.ofArray(new byte[(int) objects.bytes()]);
                byte[] back = new byte[value.length];
                for (int share = 0; share < objects.shares(); share++) {
                    MemorySegment object = objects.object(memory, 0, share);
                    objects.gather(share, MemorySegment.ofArray(value), object, HASH);
                    assertThat(objects.check(share, object, HASH)).isEqualTo(Outcome.DONE);
                    objects.scatter(share, object, MemorySegment.ofArray(back));
                }
                assertThat(back).isEqualTo(value);
            }
        }
    }

    @Test
    void wrongObjectsAreNamed() {
        ObjectFormat objects = ObjectFormat.ofRest(FORMAT, new MooncakeNames("", "m", 2, 1));
        MemorySegment memory = MemorySegment.ofArray(new byte[(int) objects.bytes()]);
        MemorySegment object = objects.object(memory, 0, 0);
        objects.gather(0, value(), object, HASH);
        assertThat(objects.check(0, object, new BlockHash(1, 2, 3, 4))).isEqualTo(Outcome.WRONG_KEY);
        assertThat(objects.check(1, object, HASH)).isEqualTo(Outcome.WRONG_FORMAT);
        for (int at : new int[] {0, 5, 9, 50, 79, 82, 90}) {
            byte before = object.get(ValueLayout.JAVA_BYTE, at);
            object.set(ValueLayout.JAVA_BYTE, at, (byte) (before ^ 1));
            assertThat(objects.check(0, object, HASH))
                    .isEqualTo(
                            at < 4
                                    ? Outcome.FOREIGN
                                    : at < 8
                                            ? Outcome.VERSION
                                            : at < 40
                                                    ? Outcome.WRONG_KEY
                                                    : at < 72
                                                            ? Outcome.WRONG_FORMAT
                                                            : at < 80 ? Outcome.LENGTH : Outcome.CHECKSUM);
            object.set(ValueLayout.JAVA_BYTE, at, before);
        }
        assertThat(objects.check(0, object, HASH)).isEqualTo(Outcome.DONE);
    }

    @Test
    void objectsThatTheServiceDoesNotTakeAreRefused() {
        ObjectFormat objects = ObjectFormat.ofRest(FORMAT, new MooncakeNames("", "m", 2, 1));
        objects.requireAtMost(84 + 32);
        assertThatThrownBy(() -> objects.requireAtMost(84 + 31))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("block_size")
                .hasMessageContaining("116 bytes");
    }

    @Test
    void valuesOfRestAndOfTheLibraryAndOfVllmHaveNamespacesOfTheirOwn() {
        MooncakeNames names = new MooncakeNames("", "m", 2, 1);
        assertThat(List.of(
                        ObjectFormat.ofRest(FORMAT, names).name(0, HASH),
                        ObjectFormat.ofBaton(FORMAT, names).name(0, HASH),
                        ObjectFormat.ofVllm(FORMAT, names).name(0, HASH)))
                .doesNotHaveDuplicates()
                .allSatisfy(name -> assertThat(name).startsWith("m@store_").contains("store_format:"));
    }
}
