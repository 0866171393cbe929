package baton.store.prompt;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.store.FileOperations;
import baton.store.prompt.TensorLayout.Interior;
import baton.testkit.RawSafetensors;
import baton.testkit.VirtualTicker;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Files of vLLM's CPU backend, packed inside. */
class TensorLayoutTest {
    private static final String NAME = "a257bb96b9c4f2fce086deecb640d4a8";
    private static final String LAYER = "model.layers.0.self_attn.attn";

    @TempDir
    Path root;

    /**
     * Digests of the results of vLLM's own operator {@code cpu_attn_reshape_and_cache} (0.32.0) for keys that count from 0 and values that
     * count from 16384, gathered as ExampleConnector gathers it.
     */
    @ParameterizedTest
    @CsvSource({
        "VEC, 32, 32, 4, 2, BF16, 86058c78729675bad4516952c048a5ac37679981b68418a7e711a0832c1c80b3",
        "AMX, 32, 32, 4, 2, BF16, 252a71a859345c2f2468c48d709d548d8984fb3ec6e61977ac7653805ac2cfa8",
        "AMX, 64, 64, 2, 3, BF16, ab80448556fde8f560adc136203b529ec55f771f3202ac1a33682366aa481d17",
        "VEC, 48, 80, 2, 2, BF16, c07441fc49056dd4d08c1b63a10b85814c756bf68824f97d1aee5e1cd36fd706",
        "VEC, 32, 32, 2, 2, F32, cc50283a81c23706a3cc1880b9d26e356c7faeb180e0337738a631e1055c4acb",
    })
    void packsAsVllmsOperator(
            Interior interior, int blockSize, int headDim, int heads, int blocks, DType dtype, String digest)
            throws IOException, NoSuchAlgorithmException {
        SharedStorage.Format format = new SharedStorage.Format(List.of(LAYER), heads, headDim, dtype, "feed");
        TensorLayout layout = TensorLayout.of("field", interior, blockSize, headDim, dtype);
        int tokens = blocks * blockSize;
        byte[] plain = counting(format, tokens);

        write(storage(format, Optional.empty(), layout), tokens, plain);
        byte[] file = RawSafetensors.read(file()).data();

        assertThat(sha256(file)).isEqualTo(digest);
        assertThat(read(storage(format, Optional.empty(), TensorLayout.GPU), tokens))
                .as("the file says how it is laid out")
                .isEqualTo(plain);
        RawSafetensors.write(file(), "kv_cache", dtype.safetensorsName(), file, tokens, heads, 2L * headDim);
        assertThat(read(storage(format, Optional.of(layout), TensorLayout.GPU), tokens))
                .as("a setting says so")
                .isEqualTo(plain);
    }

    /** Written out in the order of the packed areas, from the description of BFMMLA's operands. */
    @Test
    void packsForArmsMatrixInstructions() throws IOException {
        int blockSize = 32;
        int headDim = 64;
        int heads = 3;
        int blocks = 2;
        SharedStorage.Format format = new SharedStorage.Format(List.of(LAYER), heads, headDim, DType.BF16, "feed");
        byte[] plain = counting(format, blocks * blockSize);
        ByteBuffer from = ByteBuffer.wrap(plain).order(ByteOrder.nativeOrder());
        short[][] areas = new short[blocks * heads][2 * blockSize * headDim];
        for (int area = 0; area < areas.length; area++) {
            int at = 0;
            int block = area / heads;
            int head = area % heads;
            for (int eightTokens = 0; eightTokens < blockSize; eightTokens += 8) {
                for (int fourDimensions = 0; fourDimensions < headDim; fourDimensions += 4) {
                    for (int t = 0; t < 8; t++) {
                        for (int d = 0; d < 4; d++) {
                            int row = (block * blockSize + eightTokens + t) * heads + head;
                            areas[area][at++] = from.getShort(2 * (row * 2 * headDim + fourDimensions + d));
                        }
                    }
                }
            }
            for (int twoDimensions = 0; twoDimensions < headDim; twoDimensions += 2) {
                for (int fourTokens = 0; fourTokens < blockSize; fourTokens += 4) {
                    for (int d = 0; d < 2; d++) {
                        for (int t = 0; t < 4; t++) {
                            int row = (block * blockSize + fourTokens + t) * heads + head;
                            areas[area][at++] = from.getShort(2 * (row * 2 * headDim + headDim + twoDimensions + d));
                        }
                    }
                }
            }
        }
        ByteBuffer expected = ByteBuffer.allocate(plain.length).order(ByteOrder.nativeOrder());
        for (int token = 0; token < blocks * blockSize; token++) {
            for (int head = 0; head < heads; head++) {
                for (int x = 0; x < 2 * headDim; x++) {
                    expected.putShort(areas[token / blockSize * heads + head][token % blockSize * 2 * headDim + x]);
                }
            }
        }
        TensorLayout layout = TensorLayout.of("field", Interior.NEON_BF16, blockSize, headDim, DType.BF16);

        write(storage(format, Optional.empty(), layout), blocks * blockSize, plain);

        assertThat(RawSafetensors.read(file()).data()).isEqualTo(expected.array());
        assertThat(read(storage(format, Optional.empty(), TensorLayout.GPU), blocks * blockSize))
                .isEqualTo(plain);
    }

    @Test
    void tensorsThatDoNotFitTheBlocksAreIncompatible() throws IOException {
        SharedStorage.Format format = new SharedStorage.Format(List.of(LAYER), 2, 32, DType.BF16, "feed");
        TensorLayout wide = TensorLayout.of("field", Interior.VEC, 64, 32, DType.BF16);
        Files.createDirectory(root.resolve(NAME));
        RawSafetensors.write(file(), "kv_cache", "BF16", new byte[96 * 2 * 64 * 2], 96, 2, 64);
        assertThat(storage(format, Optional.of(wide), TensorLayout.GPU).find(NAME, 96))
                .isInstanceOf(SharedStorage.Lookup.Incompatible.class);
        RawSafetensors.write(file(), "kv_cache", "BF16", new byte[128 * 2 * 64 * 2], 2, 128, 2, 32);
        assertThat(storage(format, Optional.of(wide), TensorLayout.GPU).find(NAME, 128))
                .isInstanceOf(SharedStorage.Lookup.Incompatible.class);

        for (String recorded : List.of(
                "",
                "/",
                "cpu_attn_vec",
                "cpu_attn_vec/0",
                "cpu_attn_vec/-64",
                "cpu_attn_vec/7",
                "cpu_attn_vec/99999",
                "cpu_attn_rvv/64",
                "cpu_attn_vec/64/64")) {
            RawSafetensors.writeHeader(
                    file(),
                    ("{\"__metadata__\":{\"baton.model\":\"feed\",\"baton.dtype\":\"bfloat16\",\"baton.layout\":\"%s\","
                                    + "\"baton.crc32c\":\"0\"},"
                                    + "\"kv_cache\":{\"dtype\":\"BF16\",\"shape\":[128,2,64],\"data_offsets\":[0,32768]}}")
                            .formatted(recorded),
                    new byte[32768]);
            assertThat(storage(format, Optional.empty(), TensorLayout.GPU).find(NAME, 128))
                    .as(recorded)
                    .isInstanceOf(SharedStorage.Lookup.Incompatible.class);
        }
    }

    @Test
    void layoutsThatVllmDoesNotHaveAreRefused() {
        assertThatThrownBy(() -> Interior.parse("field", "cpu"))
                .isInstanceOf(ConfigException.class)
                .hasMessage(
                        "field: unsupported value 'cpu'; allowed: gpu, cpu_attn_vec, cpu_attn_amx, cpu_attn_neon_bf16");
        assertRefused(Interior.AMX, 16, 32, DType.BF16, "which takes blocks of a multiple of 32 tokens, at most 4096");
        assertRefused(Interior.VEC, 8, 32, DType.BF16, "the block size given is 8");
        assertRefused(Interior.AMX, 32, 32, DType.F32, "which is for bfloat16; this KV cache's type is float32");
        assertRefused(Interior.AMX, 32, 80, DType.BF16, "for head sizes that are multiples of 32; this model's is 80");
    }

    private static void assertRefused(Interior interior, int blockSize, int headDim, DType dtype, String message) {
        assertThatThrownBy(() -> TensorLayout.of("field", interior, blockSize, headDim, dtype))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("field: is " + interior.settingName())
                .hasMessageContaining(message);
    }

    private SharedStorage storage(SharedStorage.Format format, Optional<TensorLayout> foreign, TensorLayout written) {
        return new SharedStorage(
                root, format, new SharedStorage.Layouts(foreign, written), new VirtualTicker(), FileOperations.SYSTEM);
    }

    private Path file() {
        return root.resolve(NAME).resolve(LAYER + ".safetensors");
    }

    private static void write(SharedStorage storage, int tokens, byte[] plain) throws IOException {
        try (Arena arena = Arena.ofConfined();
                SharedStorage.Writer writer = storage.write(NAME, tokens)) {
            writer.layer(0, arena.allocate(plain.length).copyFrom(MemorySegment.ofArray(plain)));
            assertThat(writer.commit()).isTrue();
        }
    }

    private byte[] read(SharedStorage storage, int tokens) throws IOException {
        SharedStorage.Lookup lookup = storage.find(NAME, tokens);
        assertThat(lookup).isInstanceOf(SharedStorage.Lookup.Found.class);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment into = arena.allocate(RawSafetensors.read(file()).data().length);
            storage.read(((SharedStorage.Lookup.Found) lookup).entry(), 0, into);
            return into.toArray(ValueLayout.JAVA_BYTE);
        }
    }

    /** Keys count from 0 over all tokens, heads and dimensions, values from 16384. */
    private static byte[] counting(SharedStorage.Format format, int tokens) {
        ByteBuffer plain = ByteBuffer.allocate((int) format.layerBytes(tokens)).order(ByteOrder.nativeOrder());
        for (int row = 0; row < tokens * format.kvHeads(); row++) {
            for (int x = 0; x < 2 * format.headDim(); x++) {
                boolean key = x < format.headDim();
                int element = row * format.headDim() + (key ? x : x - format.headDim() + 16384);
                if (format.dtype() == DType.F32) {
                    plain.putInt(element);
                } else {
                    plain.putShort((short) element);
                }
            }
        }
        return plain.array();
    }

    private static String sha256(byte[] bytes) throws NoSuchAlgorithmException {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }
}
