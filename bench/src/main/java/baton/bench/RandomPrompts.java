package baton.bench;

import baton.bench.serve.Sample;
import baton.engine.model.Checkpoint;
import baton.engine.model.ModelConfig;
import baton.engine.text.Tokenizer;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Optional;
import java.util.Random;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;

/** Prompts that no server has seen before: different in each process, as a server's prefix cache may still have those of an earlier run. */
final class RandomPrompts implements AutoCloseable {
    /** Text of random tokens may be other tokens when it is read, and more of them. */
    private static final int TRIES = 4;

    private final Random random = new Random();
    private final Path model;
    private final ModelConfig config;
    private Optional<Tokenizer> tokenizer = Optional.empty();

    /** @throws IOException if the checkpoint cannot be read */
    RandomPrompts(Path model) throws IOException {
        this.model = model;
        try (Checkpoint checkpoint = Checkpoint.open(model)) {
            config = checkpoint.config();
        }
    }

    /** Positions that the model has. */
    int maxPositions() {
        return config.maxPositions();
    }

    /** A prompt as an array of token ids. */
    JsonNode ids(int tokens) {
        return Sample.random(random, config.vocabularySize(), tokens, 1).prompt();
    }

    /** A prompt as text of at most so many tokens, and not many fewer. */
    JsonNode text(int tokens) {
        Tokenizer used = tokenizer.orElseGet(() -> Tokenizer.load(model));
        tokenizer = Optional.of(used);
        int[] ids = Sample.draw(random, config.vocabularySize(), tokens);
        for (int i = 0; i < TRIES; i++) {
            int[] read = used.encode(used.decode(ids, false), true);
            if (read.length <= tokens) {
                break;
            }
            ids = Arrays.copyOf(ids, Math.max(1, ids.length - (read.length - tokens)));
        }
        return JsonNodeFactory.instance.stringNode(used.decode(ids, false));
    }

    @Override
    public void close() {
        tokenizer.ifPresent(Tokenizer::close);
    }
}
