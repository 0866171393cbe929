package baton.cli;

import baton.cli.Instances.Instance;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;

/** Prompts for mixed fleets, single and in conversations, and how they are asked. */
final class MixedPrompts {
    /** Conversations that begin with the same tokens. */
    private static final int ALIKE = 4;

    private static final int TURNS = 3;

    private MixedPrompts() {}

    /** The prompts of {@code golden.json}, borders of blocks, then prompts at random, of which many begin alike. */
    static List<int[]> single(int count, long seed) {
        Random random = new Random(seed);
        int[] shared = Ledgers.prompt(400, 3);
        List<int[]> prompts = new ArrayList<>();
        for (JsonNode golden : golden()) {
            prompts.add(Instances.ints(golden.path("prompt_ids")));
        }
        for (int length : new int[] {1, 2, 31, 32, 33, 64, 65, 1009}) {
            prompts.add(Ledgers.prompt(length, 1000 + length));
        }
        while (prompts.size() < count) {
            int border = Vllm.BLOCK * (1 + random.nextInt(8)) + random.nextInt(3) - 1;
            int[] own = Ledgers.prompt(border, random.nextInt(10_000));
            prompts.add(random.nextBoolean() ? own : join(Arrays.copyOf(shared, random.nextInt(shared.length)), own));
        }
        return prompts.subList(0, count);
    }

    static JsonNode golden() {
        return Instances.JSON
                .readTree(Instances.MODEL.resolve("golden.json").toFile())
                .path("prompts");
    }

    /**
     * The prompts of a conversation.
     *
     * @param opening that other conversations begin with too
     * @param questions tokens of each turn
     */
    record Conversation(int[] opening, List<int[]> questions) {
        /** The prompt of a turn, from the answers of the turns before it. */
        int[] prompt(List<int[]> answers) {
            int[] prompt = opening;
            for (int turn = 0; turn <= answers.size(); turn++) {
                prompt = join(prompt, questions.get(turn));
                if (turn < answers.size()) {
                    prompt = join(prompt, answers.get(turn));
                }
            }
            return prompt;
        }
    }

    /** Conversations, some of which begin with the same tokens, at or beside the border of a block. */
    static List<Conversation> conversations(int count, long seed) {
        Random random = new Random(seed);
        List<Conversation> conversations = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int group = i / ALIKE;
            int[] opening = Ledgers.prompt(Vllm.BLOCK * (3 + 4 * group) + group % 3 - 1, 200 + group);
            List<int[]> questions = new ArrayList<>();
            for (int turn = 0; turn < TURNS; turn++) {
                questions.add(Ledgers.prompt(10 + random.nextInt(60), random.nextInt(10_000)));
            }
            conversations.add(new Conversation(opening, questions));
        }
        return conversations;
    }

    private static int[] join(int[] first, int[] second) {
        return IntStream.concat(Arrays.stream(first), Arrays.stream(second)).toArray();
    }

    /** Asks a router, or an instance. */
    @FunctionalInterface
    interface Asking {
        int[] answer(int[] prompt) throws Exception;
    }

    /** @param salt only prompts with the same one share cached blocks */
    static Asking through(Instance router, int maxTokens, String salt) {
        return prompt -> router.post(
                        "/v1/completions",
                        MixedFleet.body(prompt, maxTokens)
                                .put("cache_salt", salt)
                                .toString())
                .tokenIds();
    }

    /** A prompt and its answer. */
    record Asked(int[] prompt, int[] answer) {}

    /** All answers, of several prompts at once. */
    static List<Asked> ask(List<int[]> prompts, int atOnce, Asking asking) throws Exception {
        return askInTurn(prompts.stream().map(List::of).toList(), atOnce, asking);
    }

    /** All answers; the prompts of one list one after the other, several lists at once. */
    static List<Asked> askInTurn(List<List<int[]>> prompts, int atOnce, Asking asking) throws Exception {
        return atOnce(atOnce, prompts, each -> {
            List<Asked> asked = new ArrayList<>();
            for (int[] prompt : each) {
                asked.add(new Asked(prompt, asking.answer(prompt)));
            }
            return asked;
        });
    }

    /** All turns of conversations, of several at once; each turn has the answers of the turns before it. */
    static List<Asked> converse(List<Conversation> conversations, int atOnce, Asking asking) throws Exception {
        return atOnce(atOnce, conversations, conversation -> {
            List<Asked> turns = new ArrayList<>();
            List<int[]> answers = new ArrayList<>();
            while (turns.size() < conversation.questions().size()) {
                int[] prompt = conversation.prompt(answers);
                int[] answer = asking.answer(prompt);
                answers.add(answer);
                turns.add(new Asked(prompt, answer));
            }
            return turns;
        });
    }

    private interface Each<T> {
        List<Asked> ask(T each) throws Exception;
    }

    private static <T> List<Asked> atOnce(int atOnce, List<T> all, Each<T> each) throws Exception {
        List<Asked> asked = new ArrayList<>();
        try (ExecutorService clients = Executors.newFixedThreadPool(atOnce)) {
            List<Future<List<Asked>>> asking = new ArrayList<>();
            for (T one : all) {
                asking.add(clients.submit(() -> each.ask(one)));
            }
            try {
                for (Future<List<Asked>> one : asking) {
                    asked.addAll(one.get());
                }
            } finally {
                clients.shutdownNow();
            }
        }
        return asked;
    }
}
