package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.kv.connector.HiddenState;
import baton.memory.MappableMemory;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Ranks that share a model: the part of each, and the failure of one. */
@Isolated("It measures the memory of the process.")
class RanksTest {
    private static final int BLOCKS = 64;

    static RanksTogether load(DType dtype, int blockSize, int blocks, int tensorSize, int pipelineSize)
            throws IOException {
        return load(Golden.TINY_LEDGER, dtype, blockSize, blocks, tensorSize, pipelineSize);
    }

    private static RanksTogether load(
            Path directory, DType dtype, int blockSize, int blocks, int tensorSize, int pipelineSize)
            throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            int positions = checkpoint.config().maxPositions();
            ModelOptions options = new ModelOptions(
                    dtype,
                    Quantization.NONE,
                    dtype,
                    blockSize,
                    blocks,
                    OptionalInt.of(1),
                    positions,
                    tensorSize,
                    pipelineSize,
                    true,
                    false);
            return new RanksTogether(CpuModels.load(checkpoint, options));
        }
    }

    private static SequenceSlice slice(int seed, int length) {
        int[] table = IntStream.range(0, BLOCKS)
                .map(block -> (block * 7 + seed) % BLOCKS)
                .toArray();
        return new SequenceSlice(new Random(seed).ints(length, 5, 2048).toArray(), 0, table, 1);
    }

    private static float[] row(Logits logits) {
        return logits.row(0).toArray(ValueLayout.JAVA_FLOAT);
    }

    @Test
    void aRanksPoolHasItsLayersAndHeadsAndNoMore() throws IOException {
        try (RanksTogether whole = load(DType.F32, 16, BLOCKS, 1, 1);
                RanksTogether halves = load(DType.F32, 16, BLOCKS, 2, 1);
                RanksTogether stages = load(DType.F32, 16, BLOCKS, 2, 4)) {
            KvLayout layout = whole.cache().layout();
            assertThat(halves.ranks.layout()).isEqualTo(layout);
            for (ModelRunner runner : halves.ranks.runners()) {
                assertThat(runner.cache().host().byteSize())
                        .isEqualTo(whole.cache().host().byteSize() / 2);
                assertThat(runner.cache().layout()).isEqualTo(new KvLayout(6, 2, 32, 16, DType.F32));
                assertThat(runner.cache().layerNames()).isEqualTo(whole.cache().layerNames());
                assertThat(runner.config()).isEqualTo(whole.config());
                assertThat(runner.fingerprint()).isEqualTo(whole.fingerprint());
            }
            // Six layers in four stages, each in both of a stage's ranks.
            assertThat(stages.ranks.runners().stream()
                            .map(runner -> runner.cache().layout().layers()))
                    .containsExactly(1, 1, 2, 2, 1, 1, 2, 2);
            assertThat(stages.ranks.runners().get(7).cache().layerNames())
                    .containsExactly("model.layers.4.self_attn.attn", "model.layers.5.self_attn.attn");
        }
    }

    @Test
    void anotherProcessCanMapARanksPool() throws IOException {
        try (RanksTogether halves = load(DType.F32, 16, BLOCKS, 2, 1);
                Arena arena = Arena.ofConfined()) {
            halves.forward(List.of(slice(3, 100)), LayerHooks.NONE).close();
            for (ModelRunner runner : halves.ranks.runners()) {
                Path file = ((KvMemory.Host) runner.cache().memory()).file().orElseThrow();
                MemorySegment pool = runner.cache().host();
                MemorySegment mapped = MappableMemory.map(arena, file, MappableMemory.inode(file), pool.byteSize());
                assertThat(mapped.mismatch(pool)).isEqualTo(-1);
                assertThat(mapped.mismatch(pool.asSlice(1))).isNotEqualTo(-1);
            }
        }
    }

    /** Every rank writes just the entries that one rank alone writes for these layers and heads. */
    @ParameterizedTest(name = "{0} tensor ranks, {1} stages")
    @CsvSource({"2, 2", "8, 1"})
    void theEntriesOfAllRanksAreTheWholeCache(int tensorSize, int pipelineSize) throws IOException {
        try (RanksTogether whole = load(DType.F32, 16, BLOCKS, 1, 1);
                RanksTogether shared = load(DType.F32, 16, BLOCKS, tensorSize, pipelineSize)) {
            SequenceSlice slice = slice(3, 100);
            whole.forward(List.of(slice), LayerHooks.NONE).close();
            shared.forward(List.of(slice), LayerHooks.NONE).close();
            KvCache all = whole.cache();
            for (int index = 0; index < shared.ranks.runners().size(); index++) {
                KvCache part = shared.ranks.runners().get(index).cache();
                int firstHead = 4 * shared.ranks.rank(index).tensor() / tensorSize;
                for (int layer = 0; layer < part.layout().layers(); layer++) {
                    int wholeLayer = all.layerNames().indexOf(part.layerNames().get(layer));
                    for (int head = 0; head < part.layout().kvHeads(); head++) {
                        for (int position = 0; position < 100; position++) {
                            float[] expected = entry(all, slice, wholeLayer, firstHead + head, position);
                            float[] actual = entry(part, slice, layer, head, position);
                            for (int i = 0; i < expected.length; i++) {
                                assertThat(Math.abs(actual[i] - expected[i])).isLessThan(1e-3f);
                            }
                        }
                    }
                }
            }
        }
    }

    /** Each rank has its heads, and a part of every feed-forward layer and expert; all choose the same experts; each layer has its own window. */
    @ParameterizedTest(name = "{0}, {1} tensor ranks, {2} stages")
    @CsvSource({
        "gemma2, 2, 3",
        "gpt-oss, 2, 3",
        "gpt-oss-bf16, 4, 1",
        "qwen3-moe, 2, 1",
        "qwen2-moe, 4, 2",
        "mixtral, 2, 2",
        "glm4, 2, 2",
        "deepseek-v2-lite, 4, 2",
        "deepseek-v2, 2, 3",
        "deepseek-v3, 2, 1",
        "phi3-long, 2, 1",
        "olmo2, 2, 2",
        "olmo2, 4, 1",
        "olmo3, 2, 2",
        "granite-hybrid, 2, 1",
        "starcoder2, 2, 2",
        "nemotron, 4, 1"
    })
    void ranksShareFamilies(String name, int tensorSize, int pipelineSize) throws Exception {
        Path directory = FamiliesTest.checkpoint(name);
        int[] tokens = new Random(3).ints(100, 0, 192).toArray();
        SequenceSlice slice = new SequenceSlice(tokens, 0, IntStream.range(0, 7).toArray(), 1);
        try (RanksTogether whole = load(directory, DType.F32, 16, BLOCKS, 1, 1);
                RanksTogether shared = load(directory, DType.F32, 16, BLOCKS, tensorSize, pipelineSize)) {
            float[] expected = row(whole.forward(List.of(slice), LayerHooks.NONE));
            assertThat(row(shared.forward(List.of(slice), LayerHooks.NONE))).containsExactly(expected, within(1e-4f));
        }
    }

    private static float[] entry(KvCache cache, SequenceSlice slice, int layer, int head, int position) {
        KvLayout layout = cache.layout();
        MemorySegment block = cache.block(slice.blockTable()[position / layout.blockSize()]);
        return block.asSlice(layout.entryOffset(layer, head, position % layout.blockSize()), layout.entryBytes())
                .toArray(ValueLayout.JAVA_FLOAT);
    }

    @Test
    void sumsDoNotDependOnWhichRankComesFirst() throws IOException {
        try (RanksTogether ranks = load(DType.BF16, 16, BLOCKS, 4, 1)) {
            float[] first = row(ranks.forward(List.of(slice(5, 700)), LayerHooks.NONE));
            for (int i = 0; i < 5; i++) {
                assertThat(row(ranks.forward(List.of(slice(5, 700)), LayerHooks.NONE)))
                        .isEqualTo(first);
            }
        }
    }

    @ParameterizedTest(name = "{0} tensor ranks, {1} stages, rank {2} fails")
    @CsvSource({"2, 1, 1", "2, 2, 0", "2, 2, 3", "1, 3, 1"})
    void aRankThatFailsMakesTheOtherRanksFailAndTheNextStepSucceeds(int tensorSize, int pipelineSize, int failing)
            throws IOException {
        try (RanksTogether ranks = load(DType.F32, 16, BLOCKS, tensorSize, pipelineSize)) {
            List<SequenceSlice> slices = List.of(slice(1, 50));
            float[] expected = row(ranks.forward(slices, LayerHooks.NONE));
            List<Future<Logits>> ends = ranks.forwardAll(slices, rank -> new LayerHooks() {
                @Override
                public KvFence beforeLayer(int layer) {
                    if (rank == failing && layer == 1) {
                        throw new IllegalStateException("no blocks here");
                    }
                    return KvFence.PASSED;
                }
            });
            int failingStage = failing / tensorSize;
            for (int rank = 0; rank < ends.size(); rank++) {
                // Earlier stages are done by then.
                if (rank / tensorSize >= failingStage) {
                    assertThat(ends.get(rank).exceptionNow()).hasMessageContaining("no blocks here");
                }
            }
            assertThat(row(ranks.forward(slices, LayerHooks.NONE))).isEqualTo(expected);
        }
    }

    /** A hidden state that one model gives is enough for another to make the same logits of, alone and beside other sequences. */
    @ParameterizedTest(name = "{0}, {1} tensor ranks, {2} stages")
    @CsvSource({"F32, 1, 1", "BF16, 1, 1", "F32, 2, 1", "F32, 1, 2", "BF16, 2, 3"})
    void logitsAreMadeOfAHiddenStateFromElsewhere(DType dtype, int tensorSize, int pipelineSize) throws IOException {
        try (RanksTogether from = load(dtype, 16, BLOCKS, tensorSize, pipelineSize);
                RanksTogether to = load(dtype, 16, BLOCKS, tensorSize, pipelineSize)) {
            Map<Integer, HiddenState> states = new ConcurrentHashMap<>();
            List<SequenceSlice> slices = List.of(slice(1, 90), slice(2, 33));
            List<Future<Logits>> ends = from.forwardAll(slices, _ -> new LayerHooks() {
                @Override
                public Set<Integer> hiddenWanted() {
                    return Set.of(0, 1);
                }

                @Override
                public void hidden(int slice, HiddenState state) {
                    HiddenState other = states.putIfAbsent(slice, state.copy());
                    assertThat(other == null || other.data().mismatch(state.data()) < 0)
                            .as("ranks of the last stage have the same")
                            .isTrue();
                }
            });
            List<float[]> expected = new ArrayList<>();
            Logits computed = ends.get(from.ranks.logitsRank()).resultNow();
            for (int row = 0; row < 2; row++) {
                expected.add(computed.row(row).toArray(ValueLayout.JAVA_FLOAT));
                assertThat(to.takes(Objects.requireNonNull(states.get(row)))).isTrue();
            }
            List<SequenceSlice> given = List.of(
                    new SequenceSlice(new int[0], 90, new int[0], 1, Optional.ofNullable(states.get(0))),
                    new SequenceSlice(new int[0], 33, new int[0], 1, Optional.ofNullable(states.get(1))));
            Logits alone = to.forward(given, LayerHooks.NONE);
            assertThat(alone.rows()).isEqualTo(2);
            for (int row = 0; row < 2; row++) {
                assertThat(alone.row(row).toArray(ValueLayout.JAVA_FLOAT)).isEqualTo(expected.get(row));
            }
            Logits beside = to.forward(List.of(slice(1, 90), given.get(1)), LayerHooks.NONE);
            assertThat(beside.row(1).toArray(ValueLayout.JAVA_FLOAT)).isEqualTo(expected.get(1));
            for (int row = 0; row < 2; row++) {
                assertThat(beside.argmax(row)).isEqualTo(computed.argmax(row));
            }
            assertThat(to.takes(new HiddenState(dtype, MemorySegment.ofArray(new byte[2]))))
                    .isFalse();
        }
    }

    @Test
    void sizesThatDoNotFitAreNamed() {
        assertThatThrownBy(() -> load(DType.F32, 16, BLOCKS, 3, 1))
                .isInstanceOf(ConfigException.class)
                .hasMessage("tensor_parallel_size: is 3; it must divide the model's 8 attention heads, and divide its"
                        + " 4 key/value heads or be a multiple of them");
        assertThatThrownBy(() -> load(DType.F32, 16, BLOCKS, 1, 7))
                .isInstanceOf(ConfigException.class)
                .hasMessage("pipeline_parallel_size: is 7, must be at most the model's number of layers, which is 6");
    }

    /** Steps of many shapes, some of which fail, leave no memory behind. */
    @Test
    void manyStepsLeaveNoMemoryBehind() throws Exception {
        try (RanksTogether ranks = load(DType.F32, 16, BLOCKS, 2, 2)) {
            Random random = new Random(7);
            // One tensor of hidden states lost in each step would be 9 MiB in every round.
            ResidentMemory.assertStaysFlat(2L << 20, () -> steps(ranks, random, 150));
        }
    }

    private static void steps(RanksTogether ranks, Random random, int count) {
        for (int step = 0; step < count; step++) {
            List<SequenceSlice> slices = new ArrayList<>();
            for (int i = random.nextInt(1, 4); i > 0; i--) {
                slices.add(slice(random.nextInt(1000), random.nextBoolean() ? 1 : random.nextInt(1, 120)));
            }
            boolean fails = step % 10 == 9;
            ranks.forwardAll(slices, rank -> new LayerHooks() {
                @Override
                public KvFence beforeLayer(int layer) {
                    if (fails && rank == 1 && layer == 1) {
                        throw new IllegalStateException("now and then");
                    }
                    return KvFence.PASSED;
                }
            });
        }
    }
}
