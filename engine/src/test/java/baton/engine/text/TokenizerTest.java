package baton.engine.text;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

class TokenizerTest {
    private static final Path MODEL = Path.of(System.getProperty("baton.root"), "models/tiny-ledger");
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final int BYTE_TOKENS = 3;

    @TempDir
    Path dir;

    @Test
    void promptsAndOutputsOfTheModelsGoldens() {
        JsonNode golden = JSON.readTree(MODEL.resolve("golden.json"));
        assertThat(golden.path("prompts").size()).isEqualTo(24);
        try (Tokenizer tokenizer = Tokenizer.load(MODEL)) {
            for (JsonNode entry : golden.path("prompts")) {
                String name = entry.path("name").asString();
                int[] promptIds = ints(entry.path("prompt_ids"));
                assertThat(tokenizer.encode(entry.path("prompt").asString(), false))
                        .as(name)
                        .isEqualTo(promptIds);
                assertThat(tokenizer.decode(promptIds, false))
                        .as(name)
                        .isEqualTo(entry.path("prompt").asString());
                assertThat(tokenizer.decode(ints(entry.path("output_ids")), false))
                        .as(name)
                        .isEqualTo(entry.path("output_text").asString());
                assertThat(streamed(tokenizer, promptIds, ints(entry.path("output_ids")), false))
                        .as(name)
                        .isEqualTo(entry.path("output_text").asString());
                for (JsonNode top : entry.path("first_step_top5")) {
                    assertThat(tokenizer.token(top.path("id").asInt()))
                            .isEqualTo(top.path("token").asString());
                }
            }
        }
    }

    @Test
    void specialTokens() {
        try (Tokenizer tokenizer = Tokenizer.load(MODEL)) {
            assertThat(tokenizer.encode("a", true)).startsWith(0).hasSize(2);
            assertThat(tokenizer.encode("a", false)).hasSize(1);
            assertThat(tokenizer.encode("", false)).isEmpty();
            assertThat(tokenizer.id("<|end|>")).hasValue(4);
            assertThat(tokenizer.id("no such token")).isEmpty();
            assertThat(tokenizer.isSpecial(4)).isTrue();
            assertThat(tokenizer.isSpecial(1023)).isFalse();
            assertThat(tokenizer.isSpecial(-1)).isFalse();
            Detokenizer some = tokenizer.detokenizer(new int[] {4}, true, Set.of(4));
            assertThat(some.append(2) + some.append(4) + some.append(3)).isEqualTo("<|end|>");
            assertThat(tokenizer.vocabularySize()).isEqualTo(2048);
            int[] ids = tokenizer.encode("<|user|>hello<|end|>", false);
            assertThat(tokenizer.decode(ids, true)).isEqualTo("hello");
            assertThat(tokenizer.decode(ids, false)).isEqualTo("<|user|>hello<|end|>");
        }
    }

    @Test
    void tokensAreKnownByTheirBytes() {
        try (Tokenizer tokenizer = Tokenizer.load(MODEL)) {
            int[] ids = tokenizer.encode("\uD83D\uDE00", false);
            assertThat(ids).hasSizeGreaterThan(1);
            List<Byte> bytes = new ArrayList<>();
            for (int id : ids) {
                for (byte value : tokenizer.tokenBytes(id)) {
                    bytes.add(value);
                }
            }
            assertThat(bytes).containsExactly((byte) 0xF0, (byte) 0x9F, (byte) 0x98, (byte) 0x80);
            assertThat(tokenizer.token(ids[0])).isEqualTo("\uFFFD");
            assertThat(tokenizer.tokenBytes(5000)).isEmpty();
            assertThat(tokenizer.token(-1)).isEmpty();
        }
    }

    @Test
    void anyTextComesBack() {
        try (Tokenizer tokenizer = Tokenizer.load(MODEL)) {
            for (String text :
                    List.of("", " ", "\u0000\u0001", "日本語 \uD83D\uDC69\u200D\uD83D\uDE80\n\n  x", "é\u0301ß\t.")) {
                assertThat(tokenizer.decode(tokenizer.encode(text, false), false))
                        .isEqualTo(text);
            }
            assertThat(tokenizer.decode(tokenizer.encode("a\uD83Db\uDE00", false), false))
                    .isEqualTo("a\uFFFDb\uFFFD");
        }
    }

    /** The results of each known pattern, and of normal form C, do not depend on where the text is cut. */
    @Test
    void aTextInPiecesHasTheTokensOfTheWhole() throws IOException {
        List<String> parts = List.of(
                "a",
                "B",
                "word",
                " Word",
                " is",
                "it's",
                "'t",
                "'RE",
                " ",
                "  ",
                "\n",
                "\r\n",
                "\n\n",
                "\t",
                ".",
                ",",
                ". ",
                "/",
                "...",
                "\u3002",
                "\uFF0C",
                "\u4E2D",
                "\u6587\u5B57",
                "7",
                "1234",
                "\u00E9",
                "e\u0301",
                "\u0301",
                "\u212A",
                "\u00A0",
                "\u0085",
                "\uD83D\uDE00",
                "\uD83D",
                "<|end|>",
                "<|user|>\n",
                "-",
                "(x",
                "\u0410\u0431",
                "\u1100\u1161");
        List<String> tokenizers = new ArrayList<>();
        for (String pattern : TextCuts.KNOWN_PATTERNS) {
            tokenizers.add(altered(
                    root -> ((ObjectNode) root.at("/pre_tokenizer/pretokenizers/0/pattern")).put("Regex", pattern)));
        }
        tokenizers.add(altered(root -> {
            root.putObject("normalizer").put("type", "NFC");
            root.putObject("pre_tokenizer")
                    .put("type", "ByteLevel")
                    .put("add_prefix_space", false)
                    .put("trim_offsets", false)
                    .put("use_regex", true);
        }));
        long seed = seed();
        Random random = new Random(seed);
        int cut = 0;
        for (String json : tokenizers) {
            Files.writeString(dir.resolve("tokenizer.json"), json);
            try (Tokenizer tokenizer = Tokenizer.load(dir)) {
                for (int round = 0; round < 1000; round++) {
                    StringBuilder text = new StringBuilder();
                    for (int i = random.nextInt(60); i >= 0; i--) {
                        text.append(parts.get(random.nextInt(parts.size())));
                    }
                    List<Integer> pieces = new ArrayList<>();
                    boolean special = random.nextBoolean();
                    int[] ids = tokenizer.encode(
                            text.toString(),
                            special,
                            (characters, tokens) -> pieces.add(characters),
                            1 + random.nextInt(8));
                    assertThat(ids).as("seed %d, %s", seed, text).isEqualTo(tokenizer.encode(text.toString(), special));
                    assertThat(tokenizer.leastTokens(text.toString()))
                            .as("seed %d, %s", seed, text)
                            .isLessThanOrEqualTo(ids.length);
                    cut += pieces.size() - 1;
                }
            }
        }
        assertThat(cut).as("cuts").isGreaterThan(2000);
    }

    @Test
    void anUnknownTokenizerEncodesATextInOnePiece() throws IOException {
        String text = "word after word. ".repeat(4000);
        for (Consumer<ObjectNode> change : List.<Consumer<ObjectNode>>of(
                root -> ((ObjectNode) root.at("/pre_tokenizer/pretokenizers/0/pattern")).put("Regex", "[\\s\\S]{7}"),
                root -> root.putObject("normalizer").put("type", "Lowercase"),
                root -> root.putNull("pre_tokenizer"),
                root -> ((ObjectNode) root.at("/added_tokens/1")).put("content", "r w"),
                root -> ((ObjectNode) root.at("/added_tokens/1"))
                        .put("content", " after")
                        .put("single_word", true),
                root -> ((ObjectNode) root.at("/added_tokens/1"))
                        .put("content", "a\n")
                        .put("single_word", true))) {
            Files.writeString(dir.resolve("tokenizer.json"), altered(change));
            List<Integer> pieces = new ArrayList<>();
            try (Tokenizer tokenizer = Tokenizer.load(dir)) {
                int[] ids = tokenizer.encode(text, false, (characters, tokens) -> pieces.add(characters));
                assertThat(tokenizer.tail(text, 10)).isEqualTo(text);
                assertThat(ids.length).isPositive();
            }
            assertThat(pieces).containsExactly(text.length());
        }
    }

    @Test
    void aLengthSaysHowFewTokensATextCanHave() throws IOException {
        try (Tokenizer tokenizer = Tokenizer.load(MODEL)) {
            String longest = IntStream.range(0, 2048)
                    .mapToObj(tokenizer::token)
                    .max(Comparator.comparingInt(token -> token.getBytes(UTF_8).length))
                    .orElseThrow();
            String text = longest.repeat(1000);
            assertThat(tokenizer.leastTokens(text)).isEqualTo(1000);
            assertThat(tokenizer.encode(text, false)).hasSize(1000);
            String prose = "word after word. ".repeat(10_000);
            String tail = tokenizer.tail(prose, 100);
            int[] whole = tokenizer.encode(prose, false);
            int[] end = tokenizer.encode(tail, false);
            assertThat(tail.length()).isLessThan(2000);
            assertThat(Arrays.copyOfRange(end, end.length - 100, end.length))
                    .isEqualTo(Arrays.copyOfRange(whole, whole.length - 100, whole.length));
            String head = tokenizer.head(prose, 100);
            assertThat(head.length()).isLessThan(2000);
            assertThat(Arrays.copyOf(tokenizer.encode(head, false), 100)).isEqualTo(Arrays.copyOf(whole, 100));
        }
        String spaces = " ".repeat(1000);
        Files.writeString(
                dir.resolve("tokenizer.json"),
                altered(root -> ((ObjectNode) root.at("/added_tokens/1")).put("lstrip", true)));
        try (Tokenizer tokenizer = Tokenizer.load(dir)) {
            assertThat(tokenizer.encode(spaces + "<|eos|>", false)).hasSize(1);
            assertThat(tokenizer.leastTokens(spaces + "<|eos|>")).isEqualTo(1);
        }
        for (Consumer<ObjectNode> change : List.<Consumer<ObjectNode>>of(
                root -> root.putObject("normalizer")
                        .put("type", "Strip")
                        .put("strip_left", true)
                        .put("strip_right", true),
                root -> ((ObjectNode) root.at("/pre_tokenizer/pretokenizers/0")).put("behavior", "Removed"),
                root -> ((ObjectNode) root.at("/model/vocab")).remove("\u0100"))) {
            Files.writeString(dir.resolve("tokenizer.json"), altered(change));
            try (Tokenizer tokenizer = Tokenizer.load(dir)) {
                assertThat(tokenizer.leastTokens(spaces)).isZero();
            }
        }
    }

    @Test
    void textThatNormalizationShortensCountsAsShort() throws IOException {
        Files.writeString(dir.resolve("tokenizer.json"), altered(root -> {
            root.putObject("normalizer").put("type", "NFC");
            ((ObjectNode) root.at("/added_tokens/1"))
                    .put("content", "K".repeat(20))
                    .put("normalized", true);
        }));
        try (Tokenizer tokenizer = Tokenizer.load(dir)) {
            String kelvin = "\u212A".repeat(2000);
            assertThat(tokenizer.encode(kelvin, false)).hasSize(100);
            assertThat(tokenizer.leastTokens(kelvin)).isEqualTo(100);
        }
    }

    /** In a SentencePiece vocabulary U+2581 is a space, also where a text has it already. */
    @Test
    void aTextOfSpaceSignsHasAsFewTokensAsOneOfSpaces() throws IOException {
        ObjectNode root = (ObjectNode)
                JSON.readTree(Files.readString(writeSentencePiece(dir, false).resolve("tokenizer.json")));
        ObjectNode vocabulary = (ObjectNode) root.at("/model/vocab");
        ArrayNode merges = (ArrayNode) root.at("/model/merges");
        for (int half = 1; half <= 8; half *= 2) {
            String piece = "\u2581".repeat(half);
            merges.add(piece + " " + piece);
            if (!vocabulary.has(piece + piece)) {
                vocabulary.put(piece + piece, vocabulary.size());
            }
        }
        String signs = "\u2581".repeat(1600);
        try (Tokenizer tokenizer = Tokenizer.load(write(dir, root.toString()))) {
            assertThat(tokenizer.encode(signs, false)).hasSize(100);
            assertThat(tokenizer.leastTokens(signs)).isEqualTo(100);
        }

        root.putObject("normalizer").put("type", "Prepend").put("prepend", "\u2581");
        String word = "z".repeat(16);
        ((ArrayNode) root.at("/added_tokens"))
                .addObject()
                .put("id", vocabulary.size())
                .put("content", word)
                .put("special", false)
                .put("single_word", false)
                .put("lstrip", false)
                .put("rstrip", false)
                .put("normalized", true);
        String words = ("\u2581" + word).repeat(100);
        try (Tokenizer tokenizer = Tokenizer.load(write(dir, root.toString()))) {
            assertThat(tokenizer.encode(words, false)).hasSize(101);
            assertThat(tokenizer.leastTokens(words)).isBetween(80L, 101L);
        }
    }

    @Test
    void aWatchEndsAnEncodingBetweenPieces() {
        try (Tokenizer tokenizer = Tokenizer.load(MODEL)) {
            String text = "word after word. ".repeat(10_000);
            List<Integer> seen = new ArrayList<>();
            assertThatThrownBy(() -> tokenizer.encode(text, true, (characters, tokens) -> {
                        seen.add(tokens);
                        if (tokens > 0) {
                            throw new IllegalStateException("enough");
                        }
                    }))
                    .hasMessage("enough");
            assertThat(seen).hasSize(2);
            assertThat(seen.getLast()).isBetween(1, Tokenizer.PIECE_CHARACTERS);
        }
    }

    /** Ids at random tear characters apart in every way there is; the library is the oracle. */
    @Test
    void byteLevelDecodingEqualsTheLibrarysForAnyIds() {
        long seed = seed();
        Random random = new Random(seed);
        try (Tokenizer tokenizer = Tokenizer.load(MODEL)) {
            int[] torn = tokenizer.encode("\uD83D\uDE00\uD83C\uDF0A漢字é", false);
            for (int round = 0; round < 2000; round++) {
                boolean skip = random.nextBoolean();
                int[] ids = random.ints(random.nextInt(40), 0, 100)
                        .map(choice -> switch (choice % 4) {
                            case 0 -> torn[random.nextInt(torn.length)];
                            case 1 -> random.nextInt(5, 261);
                            case 2 -> random.nextInt(2060);
                            default -> random.nextInt(6);
                        })
                        .toArray();
                assertThat(tokenizer.decode(ids, skip))
                        .as("tests.seed=%d, round %d, ids %s", seed, round, Arrays.toString(ids))
                        .isEqualTo(tokenizer.decodeByLibrary(ids, skip));
                assertPiecesAreWhole(tokenizer, ids, skip, "tests.seed=" + seed + ", round " + round);
            }
        }
    }

    @Test
    void sentencePieceDecoding() throws IOException {
        long seed = seed();
        Random random = new Random(seed);
        try (Tokenizer tokenizer = Tokenizer.load(writeSentencePiece(dir, true))) {
            int newline = BYTE_TOKENS + '\n';
            int word = tokenizer.id("\u2581the").orElseThrow();
            assertThat(tokenizer.decode(new int[] {1, word, newline, word}, true))
                    .isEqualTo("the\n the");
            Detokenizer afterPrompt = tokenizer.detokenizer(new int[] {1, word}, true);
            assertThat(afterPrompt.append(word)).isEqualTo(" the");
            assertThat(afterPrompt.append(newline)).isEqualTo("\n");
            assertThat(tokenizer.detokenizer(new int[] {1}, true).append(word)).isEqualTo("the");
            assertThat(tokenizer.tokenBytes(newline)).containsExactly('\n');

            for (int round = 0; round < 1000; round++) {
                List<Integer> ids = new ArrayList<>();
                for (int piece = random.nextInt(12); piece > 0; piece--) {
                    switch (random.nextInt(3)) {
                        case 0 -> ids.add(random.nextInt(3));
                        case 1 -> ids.add(random.nextInt(BYTE_TOKENS + 256, tokenizer.vocabularySize()));
                        default -> {
                            for (byte value : List.of("\uD83D\uDE00", "漢", "é", "\n")
                                    .get(random.nextInt(4))
                                    .getBytes(UTF_8)) {
                                ids.add(BYTE_TOKENS + (value & 0xFF));
                            }
                        }
                    }
                }
                int[] array = ids.stream().mapToInt(Integer::intValue).toArray();
                boolean skip = random.nextBoolean();
                assertThat(tokenizer.decode(array, skip))
                        .as("tests.seed=%d, round %d, ids %s", seed, round, ids)
                        .isEqualTo(tokenizer.decodeByLibrary(array, skip));
                assertPiecesAreWhole(tokenizer, array, skip, "tests.seed=" + seed + ", round " + round);
            }
            int[] broken = {BYTE_TOKENS + 'a', BYTE_TOKENS + 0xF0, BYTE_TOKENS + 'b', BYTE_TOKENS + 0x9F};
            assertThat(tokenizer.decode(broken, true)).isEqualTo("a\uFFFDb\uFFFD");
        }
    }

    @Test
    void sentencePieceWithoutStripKeepsTheFirstSpace() throws IOException {
        try (Tokenizer tokenizer = Tokenizer.load(writeSentencePiece(dir, false))) {
            int word = tokenizer.id("\u2581the").orElseThrow();
            assertThat(tokenizer.decode(new int[] {word, word}, true))
                    .isEqualTo(" the the")
                    .isEqualTo(tokenizer.decodeByLibrary(new int[] {word, word}, true));
        }
    }

    @Test
    void otherDecodersGoThroughTheLibrary() throws IOException {
        long seed = seed();
        Random random = new Random(seed);
        try (Tokenizer tokenizer = Tokenizer.load(writeWordPiece(dir))) {
            assertThat(tokenizer.decode(tokenizer.encode("un able ##ing the", false), true))
                    .isEqualTo("un ableing the");
            for (int round = 0; round < 300; round++) {
                int[] ids = random.ints(random.nextInt(20), 0, tokenizer.vocabularySize())
                        .toArray();
                boolean skip = random.nextBoolean();
                assertThat(streamed(tokenizer, new int[0], ids, skip))
                        .as("tests.seed=%d, round %d, ids %s", seed, round, Arrays.toString(ids))
                        .isEqualTo(tokenizer.decode(ids, skip));
            }
            int able = tokenizer.id("able").orElseThrow();
            assertThat(tokenizer.detokenizer(new int[] {able}, true).append(able))
                    .isEqualTo(" able");
        }
    }

    @Test
    void promptsLeftoverBytesBelongToTheFirstCharacter() {
        try (Tokenizer tokenizer = Tokenizer.load(MODEL)) {
            int[] emoji = tokenizer.encode("\uD83D\uDE00", false);
            int[] prompt = IntStream.concat(
                            IntStream.of(tokenizer.encode("<|bos|>hello there", false)),
                            IntStream.of(emoji).limit(emoji.length - 1))
                    .toArray();
            Detokenizer detokenizer = tokenizer.detokenizer(prompt, true);
            assertThat(detokenizer.append(emoji[emoji.length - 1])).isEqualTo("\uD83D\uDE00");
            assertThat(detokenizer.append(emoji[0])).isEmpty();
            assertThat(detokenizer.finish()).isEqualTo("\uFFFD");
        }
    }

    @Test
    void encodingFromManyThreads() throws Exception {
        try (Tokenizer tokenizer = Tokenizer.load(MODEL);
                ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<Boolean>> done = new ArrayList<>();
            for (int i = 0; i < 64; i++) {
                String text = "Mira owns " + i + " spoons. ".repeat(i);
                Callable<Boolean> roundTrip = () ->
                        tokenizer.decode(tokenizer.encode(text, false), false).equals(text);
                done.add(threads.submit(roundTrip));
            }
            for (Future<Boolean> future : done) {
                assertThat(future.get(120, TimeUnit.SECONDS)).isTrue();
            }
        }
    }

    @Test
    void closedTokenizerSaysSo() {
        Tokenizer tokenizer = Tokenizer.load(MODEL);
        tokenizer.close();
        tokenizer.close();
        assertThatThrownBy(() -> tokenizer.encode("a", false))
                .isInstanceOf(IllegalStateException.class)
                .hasMessage("tokenizer is closed");
    }

    @Test
    void truncationAndPaddingOfTheFileAreIgnored() throws IOException {
        ObjectNode root = (ObjectNode) JSON.readTree(MODEL.resolve("tokenizer.json"));
        root.putObject("truncation")
                .put("direction", "Right")
                .put("max_length", 3)
                .put("strategy", "LongestFirst")
                .put("stride", 0);
        root.set("padding", JSON.readTree("""
                {"strategy":{"Fixed":64},"direction":"Right","pad_to_multiple_of":null,"pad_id":1,"pad_type_id":0,"pad_token":"<|eos|>"}
                """));
        try (Tokenizer tokenizer = Tokenizer.load(write(dir, root.toString()))) {
            assertThat(tokenizer.encode("1 2 3 4 5", false)).hasSize(9);
        }
    }

    @Test
    void unusableFilesAreNamed() throws IOException {
        String file = dir.resolve("tokenizer.json").toString();
        assertThatThrownBy(() -> Tokenizer.load(dir))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(file + ": no such file");
        for (String content :
                List.of("", "{", "[]", "{\"model\":{\"vocab\":3}}", "{\"model\":{\"vocab\":{\"a\":-1}}}")) {
            write(dir, content);
            assertThatThrownBy(() -> Tokenizer.load(dir))
                    .as(content)
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith(file + ": ");
        }
        write(dir, "{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":0}}}");
        assertThatThrownBy(() -> Tokenizer.load(dir))
                .isInstanceOf(ConfigException.class)
                .hasMessage(file + ": model.vocab has id 0 for 'a' and for 'c'");
        write(dir, "{\"model\":{\"type\":\"Strange\",\"vocab\":{\"a\":0}}}");
        assertThatThrownBy(() -> Tokenizer.load(dir))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("refuses it");
        Files.delete(dir.resolve("tokenizer.json"));
        Files.createDirectory(dir.resolve("tokenizer.json"));
        assertThatThrownBy(() -> Tokenizer.load(dir))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(file + ": cannot be read");
    }

    /** Runs in a JVM of its own, without variables about tracking in its environment. */
    @Test
    void libraryIsKeptOffline() throws Exception {
        ProcessBuilder builder = new ProcessBuilder(
                Path.of(System.getProperty("java.home"), "bin/java").toString(),
                "--enable-native-access=ALL-UNNAMED",
                "-cp",
                System.getProperty("java.class.path"),
                OfflineProbe.class.getName(),
                MODEL.toString());
        builder.environment().remove("OPT_OUT_TRACKING");
        builder.environment().remove("DJL_OFFLINE");
        Path output = dir.resolve("output");
        Process process = builder.redirectErrorStream(true)
                .redirectOutput(output.toFile())
                .start();
        try {
            assertThat(process.waitFor(60, TimeUnit.SECONDS)).isTrue();
        } finally {
            process.destroyForcibly();
        }
        assertThat(Files.readString(output)).contains("tokens=2 offline=true");
    }

    /** Loads a tokenizer and says whether its library holds itself for offline. */
    static final class OfflineProbe {
        public static void main(String[] arguments) {
            try (Tokenizer tokenizer = Tokenizer.load(Path.of(arguments[0]))) {
                System.out.println("tokens=" + tokenizer.encode("a", true).length + " offline="
                        + ai.djl.util.Utils.isOfflineMode());
            }
        }
    }

    /** The model's tokenizer.json with a change. */
    private static String altered(Consumer<ObjectNode> change) {
        ObjectNode root = (ObjectNode) JSON.readTree(MODEL.resolve("tokenizer.json"));
        change.accept(root);
        return root.toString();
    }

    private static long seed() {
        return Long.getLong("tests.seed", System.nanoTime());
    }

    private static void assertPiecesAreWhole(Tokenizer tokenizer, int[] ids, boolean skip, String description) {
        Detokenizer detokenizer = tokenizer.detokenizer(new int[0], skip);
        StringBuilder text = new StringBuilder();
        for (int id : ids) {
            String piece = detokenizer.append(id);
            assertThat(UTF_8.newEncoder().canEncode(piece)).as(description).isTrue();
            text.append(piece);
        }
        assertThat(text + detokenizer.finish()).as(description).isEqualTo(tokenizer.decode(ids, skip));
    }

    private static String streamed(Tokenizer tokenizer, int[] promptIds, int[] ids, boolean skip) {
        Detokenizer detokenizer = tokenizer.detokenizer(promptIds, skip);
        StringBuilder text = new StringBuilder();
        for (int id : ids) {
            text.append(detokenizer.append(id));
        }
        return text.append(detokenizer.finish()).toString();
    }

    private static int[] ints(JsonNode array) {
        return array.valueStream().mapToInt(JsonNode::asInt).toArray();
    }

    private static Path write(Path dir, String tokenizerJson) throws IOException {
        Files.writeString(dir.resolve("tokenizer.json"), tokenizerJson);
        return dir;
    }

    /** Three special tokens, the 256 byte tokens, then pieces, as Llama 2 has them. */
    private static Path writeSentencePiece(Path dir, boolean strip) throws IOException {
        ObjectNode root = JSON.createObjectNode();
        ArrayNode added = root.putArray("added_tokens");
        ObjectNode vocabulary = root.putObject("model")
                .put("type", "BPE")
                .put("byte_fallback", true)
                .put("unk_token", "<unk>")
                .putObject("vocab");
        for (String token : List.of("<unk>", "<s>", "</s>")) {
            added.addObject()
                    .put("id", vocabulary.size())
                    .put("content", token)
                    .put("special", true)
                    .put("single_word", false)
                    .put("lstrip", false)
                    .put("rstrip", false)
                    .put("normalized", false);
            vocabulary.put(token, vocabulary.size());
        }
        for (int value = 0; value < 256; value++) {
            vocabulary.put("<0x%02X>".formatted(value), BYTE_TOKENS + value);
        }
        for (String token : List.of("\u2581", "\u2581the", "the", "\u2581\u2581", "é", "漢", "a", "<0x4>")) {
            vocabulary.put(token, vocabulary.size());
        }
        ((ObjectNode) root.path("model")).putArray("merges");
        ArrayNode steps = root.putObject("decoder").put("type", "Sequence").putArray("decoders");
        steps.addObject()
                .put("type", "Replace")
                .put("content", " ")
                .putObject("pattern")
                .put("String", "\u2581");
        steps.addObject().put("type", "ByteFallback");
        steps.addObject().put("type", "Fuse");
        if (strip) {
            steps.addObject()
                    .put("type", "Strip")
                    .put("content", " ")
                    .put("start", 1)
                    .put("stop", 0);
        }
        return write(dir, root.toString());
    }

    private static Path writeWordPiece(Path dir) throws IOException {
        return write(dir, """
                {"version":"1.0","added_tokens":[{"id":0,"content":"[UNK]","special":true,"single_word":false,"lstrip":false,
                "rstrip":false,"normalized":false}],"pre_tokenizer":{"type":"WhitespaceSplit"},
                "model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
                "vocab":{"[UNK]":0,"un":1,"able":2,"##able":3,"##ing":4,"the":5,".":6,"漢":7}},
                "decoder":{"type":"WordPiece","prefix":"##","cleanup":true}}
                """);
    }
}
