package baton.bench.serve;

import baton.engine.text.ChatRequest;
import baton.engine.text.ChatTemplate;
import baton.engine.text.Tokenizer;
import baton.kv.ConfigException;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.IntStream;
import tools.jackson.databind.node.JsonNodeFactory;

/** The tokenizer of a Hugging Face model directory. */
public final class ModelTokens implements BenchTokenizer {
    private final Path directory;
    private final Tokenizer tokenizer;
    private final int[] ids;

    /** @throws ConfigException if the directory has no readable {@code tokenizer.json} */
    public ModelTokens(Path directory) {
        this.directory = directory;
        tokenizer = Tokenizer.load(directory);
        ids = IntStream.range(0, tokenizer.vocabularySize())
                .filter(id -> !tokenizer.isSpecial(id)
                        && !tokenizer.decode(new int[] {id}, false).isEmpty())
                .toArray();
        if (ids.length == 0) {
            throw new ConfigException("tokenizer", "is '" + directory + "', all tokens of which are special");
        }
    }

    @Override
    public int[] ids() {
        return ids.clone();
    }

    @Override
    public int around() {
        return tokenizer.encode("", true).length;
    }

    @Override
    public int[] encode(String text, boolean around) {
        return tokenizer.encode(text, around);
    }

    @Override
    public String decode(int[] ids) {
        return tokenizer.decode(ids, false);
    }

    @Override
    public String chat(String message) {
        ChatTemplate template = ChatTemplate.load(directory);
        if (!template.isPresent()) {
            throw new ConfigException(
                    "tokenizer", "is '" + directory + "', which has no chat template; give --skip-chat-template");
        }
        return template.render(ChatRequest.of(List.of(
                JsonNodeFactory.instance.objectNode().put("role", "user").put("content", message))));
    }

    @Override
    public void close() {
        tokenizer.close();
    }
}
