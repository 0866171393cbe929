package baton.bench.serve;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.List;
import java.util.OptionalInt;
import java.util.Set;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.io.TempDir;

@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class DataSetTest {
    @AutoClose
    private BenchTokenizer tokens;

    @TempDir
    private Path directory;

    @BeforeAll
    void load() {
        tokens = new ModelTokens(Path.of("..", "models", "tiny-ledger"));
    }

    @Test
    void randomPromptsHaveTheLengthsThatWereAskedForAndShareThePrefix() throws Exception {
        List<Sample> samples = new RandomData(20, 60, 10, 0.5, 0).samples(tokens, 40, 1);
        Set<Integer> lengths = new HashSet<>();
        Set<String> texts = new HashSet<>();
        String common = text(samples.getFirst());
        for (Sample sample : samples) {
            int own = sample.promptTokens() - 20 + tokens.around();
            // Mending a text may end a token beside its length.
            assertThat(own).isBetween(28, 92);
            assertThat(sample.outputTokens()).isEqualTo(10);
            assertThat(read(sample)).hasSize(sample.promptTokens());
            lengths.add(own);
            texts.add(text(sample));
            common = commonStart(common, text(sample));
        }
        assertThat(lengths).hasSizeGreaterThan(10);
        assertThat(texts).hasSize(40);
        assertThat(tokens.encode(common, false).length).isBetween(18, 24);
    }

    @Test
    void theSameSeedGivesTheSamePrompts() throws Exception {
        DataSet data = new RandomData(0, 30, 10, 0.2, 0.9);
        assertThat(data.samples(tokens, 5, 7)).isEqualTo(data.samples(tokens, 5, 7));
        assertThat(data.samples(tokens, 5, 7)).isNotEqualTo(data.samples(tokens, 5, 8));
    }

    @Test
    void prefixesAreRepeated() throws Exception {
        List<Sample> samples = new PrefixRepetitionData(3, 40, 20, 5, true).samples(tokens, 10, 1);
        assertThat(samples).hasSize(9);
        List<String> starts = samples.stream()
                .map(sample -> text(sample).substring(0, 30))
                .distinct()
                .toList();
        assertThat(starts).hasSize(3);
        assertThat(samples.stream().map(Sample::prompt).distinct()).hasSize(9);
        assertThatThrownBy(() -> new PrefixRepetitionData(3, 40, 20, 5, true).samples(tokens, 2, 1))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("num-prompts")
                .hasMessageContaining("is 2");
    }

    @Test
    void aTurnBeginsWithTheTurnsBeforeIt() throws Exception {
        List<Sample> samples = new ConversationData(3, 20, 8).samples(tokens, 6, 1);
        assertThat(samples).hasSize(6);
        for (int conversation = 0; conversation < 2; conversation++) {
            String first = text(samples.get(conversation));
            String second = text(samples.get(conversation + 2));
            String third = text(samples.get(conversation + 4));
            assertThat(second).startsWith(first);
            assertThat(third).startsWith(second);
        }
        assertThat(text(samples.get(1))).isNotEqualTo(text(samples.get(0)));
    }

    @Test
    void conversationsOfAFileArePromptAndLengthOfTheAnswer() throws Exception {
        Path file = directory.resolve("share.json");
        Files.writeString(file, """
                [{"conversations": [{"from": "human", "value": "The age of Nora is eighty-seven."},
                    {"from": "gpt", "value": "It is eighty-seven, as the ledger says."}]},
                 {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "too short a prompt"}]},
                 {"conversations": [{"from": "human", "value": "no answer to this one"}]}]
                """);
        FileData data = new FileData(
                FileData.Format.SHAREGPT, file, OptionalInt.empty(), new FileData.Order(true, true, false));
        List<Sample> samples = data.samples(tokens, 3, 1);
        assertThat(samples).hasSize(3).allSatisfy(sample -> {
            assertThat(text(sample)).isEqualTo("The age of Nora is eighty-seven.");
            assertThat(sample.outputTokens())
                    .isEqualTo(tokens.encode("It is eighty-seven, as the ledger says.", true).length);
        });
        assertThat(new FileData(
                                FileData.Format.SHAREGPT,
                                file,
                                OptionalInt.of(3),
                                new FileData.Order(true, false, false))
                        .samples(tokens, 3, 1))
                .singleElement()
                .satisfies(sample -> assertThat(sample.outputTokens()).isEqualTo(3));
    }

    @Test
    void linesOfAFileArePromptsInItsOrder() throws Exception {
        Path file = directory.resolve("custom.jsonl");
        Files.writeString(file, """
                {"prompt": "one", "output_tokens": 4}

                {"prompt": "two", "output_tokens": 5}
                """);
        FileData data = new FileData(
                FileData.Format.CUSTOM, file, OptionalInt.empty(), new FileData.Order(false, false, false));
        List<Sample> samples = data.samples(tokens, 9, 1);
        assertThat(samples.stream().map(DataSetTest::text)).containsExactly("one", "two");
        assertThat(samples.stream().map(Sample::outputTokens)).containsExactly(4, 5);
    }

    @Test
    void aLineThatIsWrongIsNamed() throws Exception {
        Path file = directory.resolve("wrong.jsonl");
        Files.writeString(file, "{\"prompt\": \"one\"}\n");
        FileData data = new FileData(
                FileData.Format.CUSTOM, file, OptionalInt.empty(), new FileData.Order(false, false, false));
        assertThatThrownBy(() -> data.samples(tokens, 1, 1))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("line 1")
                .hasMessageContaining("output_tokens");
    }

    @Test
    void optionsOutOfTheirRangeAreRefusedByName() {
        assertThatThrownBy(() -> new RandomData(0, 10, 10, 1, 0)).hasMessageContaining("random-range-ratio");
        assertThatThrownBy(() -> new RandomData(0, 10, 0, 0, 0)).hasMessageContaining("random-output-len");
        assertThatThrownBy(() -> new RandomData(0, 0, 1, 0, 0).samples(tokens, 1, 1))
                .hasMessageContaining("random-input-len");
        assertThatThrownBy(() -> new ConversationData(0, 1, 1)).hasMessageContaining("conversation-turns");
    }

    private int[] read(Sample sample) throws IOException {
        return tokens.encode(text(sample), false);
    }

    private static String text(Sample sample) {
        return sample.prompt().asString("");
    }

    private static String commonStart(String a, String b) {
        int end = 0;
        while (end < Math.min(a.length(), b.length()) && a.charAt(end) == b.charAt(end)) {
            end++;
        }
        return a.substring(0, end);
    }
}
