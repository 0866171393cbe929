package baton.engine.text;

import static org.assertj.core.api.Assertions.assertThat;

import baton.testkit.RealModels;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.CRC32;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Token ids, decoded texts and chat prompts of published models equal those of transformers; {@code make_real_goldens.py} writes their
 * digests. {@code -Dtests.texts=FILE} writes the texts for it.
 */
@Tag("real")
class RealTokenizersTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final List<String> ROLES = List.of("system", "user", "assistant");
    private static final int MOST_SHOWN = 10;
    /** Characters of a piece of a text that is encoded piece by piece. */
    private static final int PIECE = 50;

    @ParameterizedTest
    @EnumSource
    void textsAndChatsAreThoseOfTransformers(RealModels model) throws IOException {
        List<String> texts = RealTexts.all();
        String file = System.getProperty("tests.texts");
        if (file != null) {
            Files.writeString(Path.of(file), JSON.writeValueAsString(texts));
        }
        Path checkpoint = model.assumeCheckpoint();
        ByteBuffer digests = digests(model);
        ChatTemplate template = ChatTemplate.load(checkpoint);
        assertThat(digests.remaining()).isEqualTo(texts.size() * Integer.BYTES);
        List<String> wrong = new ArrayList<>();
        try (Tokenizer tokenizer = Tokenizer.load(checkpoint)) {
            for (int i = 0; i < texts.size(); i++) {
                String found = described(tokenizer, template, texts, i);
                CRC32 digest = new CRC32();
                digest.update(found.getBytes(StandardCharsets.UTF_8));
                if ((int) digest.getValue() != digests.getInt()) {
                    wrong.add("%d: %.500s: %.1000s".formatted(i, JSON.writeValueAsString(texts.get(i)), found));
                }
            }
            String all = texts.getLast();
            assertThat(tokenizer.encode(all, true, EncodingWatch.NONE, PIECE))
                    .as("in pieces")
                    .isEqualTo(tokenizer.encode(all, true, EncodingWatch.NONE, all.length()));
        }
        assertThat(wrong.subList(0, Math.min(MOST_SHOWN, wrong.size())))
                .as("%d texts differ", wrong.size())
                .isEmpty();
    }

    /** The lines that {@code make_real_goldens.py} makes of a text. */
    private static String described(Tokenizer tokenizer, ChatTemplate template, List<String> texts, int index) {
        int[] ids = tokenizer.encode(texts.get(index), true);
        List<String> lines = new ArrayList<>(List.of(
                line(ids),
                line(tokenizer.encode(texts.get(index), false)),
                tokenizer.decode(ids, true),
                tokenizer.decode(ids, false)));
        if (template.isPresent()) {
            List<JsonNode> messages = IntStream.range(index, index + 1 + index % 4)
                    .<JsonNode>mapToObj(i -> JSON.createObjectNode()
                            .put("role", ROLES.get(i % ROLES.size()))
                            .put("content", texts.get(i % texts.size())))
                    .toList();
            lines.add(template.render(new ChatRequest(messages, Optional.empty(), index % 2 == 0, false, Map.of())));
        }
        return String.join("\n", lines);
    }

    private static String line(int[] ids) {
        return Arrays.stream(ids).mapToObj(Integer::toString).collect(Collectors.joining(","));
    }

    private static ByteBuffer digests(RealModels model) throws IOException {
        try (var in = Objects.requireNonNull(
                RealTokenizersTest.class.getResourceAsStream("real/" + model.checkpoint() + ".crc32"))) {
            return ByteBuffer.wrap(in.readAllBytes()).order(ByteOrder.LITTLE_ENDIAN);
        }
    }
}
