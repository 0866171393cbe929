package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.store.mooncake.MooncakeServer;
import baton.store.mooncake.RestStandIn;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Isolated;

/**
 * MooncakeStoreConnector behind a memory of a few blocks, over a stand-in for the store's REST service and over the real one, while the service
 * fails in every way: each answer equals that of an engine alone, under the policy by which a failed load fails its request.
 */
@Isolated("Loads have 0.3 seconds, and simulated worlds take all cores.")
class MooncakeStoreFaultsTest {
    private static final int PROMPTS = Integer.getInteger("tests.mooncake_prompts", 48);
    private static final int AT_ONCE = 6;
    private static final SamplingParams FOUR =
            SamplingParams.builder().temperature(0).maxTokens(4).build();

    @TempDir
    private Path directory;

    private final Random random = new Random(Long.getLong("tests.seed", 11));

    /** The faults between two batches. */
    private enum Fault {
        NONE,
        KILLED,
        HANGS,
        SLOW,
        FULL,
        EMPTIED,
        DAMAGED,
        SWAPPED
    }

    /** A service and its faults. */
    private interface Service {
        URI url();

        void begin(Fault fault) throws Exception;

        void end(Fault fault) throws Exception;
    }

    private static EngineConfig config(URI url) {
        return LLMTest.config()
                .numBlocks(110)
                .maxModelLen(700)
                .kvTransfer(KvTransferConfig.builder("MooncakeStoreConnector", KvRole.BOTH)
                        .loadFailurePolicy(LoadFailurePolicy.FAIL)
                        .extra("store_rest_url", url.toString())
                        // Some 40 blocks.
                        .extra("local_buffer_size", 4_000_000)
                        .extra("load_timeout_seconds", 0.3)
                        .build())
                .build();
    }

    private void everyAnswerIsRight(Service service) throws Exception {
        List<int[]> prompts = LLMTest.promptsThatBeginAlike(random, PROMPTS);
        List<int[]> alone = LLMTest.alone(prompts, FOUR);
        EngineConfig config = config(service.url());
        List<Integer> earlier = new ArrayList<>();
        for (int from = 0; from < PROMPTS; from += AT_ONCE) {
            Fault fault = Fault.values()[from / AT_ONCE % Fault.values().length];
            List<Integer> now = IntStream.range(from, Math.min(from + AT_ONCE, PROMPTS))
                    .boxed()
                    .toList();
            // Nothing is in this engine's memory: blocks that it has not computed are in the store.
            try (LLM llm = new LLM(config)) {
                ask(llm, fault + ", before", prompts, alone, now.subList(0, now.size() / 2), earlier);
                service.begin(fault);
                ask(llm, fault + ", during", prompts, alone, now.subList(now.size() / 2, now.size()), earlier);
                service.end(fault);
                ask(llm, fault + ", after", prompts, alone, now, List.of());
            }
            earlier.addAll(now);
        }
    }

    /** @param earlier prompts of which some are asked again */
    private void ask(
            LLM llm, String when, List<int[]> prompts, List<int[]> alone, List<Integer> now, List<Integer> earlier) {
        List<Integer> asked = new ArrayList<>(now);
        for (int i = 0; i < 4 && !earlier.isEmpty(); i++) {
            asked.add(earlier.get(random.nextInt(earlier.size())));
        }
        List<RequestOutput> outputs =
                llm.generateTokens(asked.stream().map(prompts::get).toList(), FOUR);
        for (int i = 0; i < asked.size(); i++) {
            assertThat(outputs.get(i).tokens())
                    .as("prompt %d, %s", asked.get(i), when)
                    .isEqualTo(alone.get(asked.get(i)));
        }
    }

    @Test
    void everyAnswerIsRightWhileAMooncakeServiceFails() throws Exception {
        try (RestStandIn standIn = new RestStandIn()) {
            everyAnswerIsRight(standIn(standIn));
            assertThat(standIn.reads).as("blocks read from the service").hasValueGreaterThan(PROMPTS / 8);
        }
    }

    private static Service standIn(RestStandIn standIn) {
        return new Service() {
            @Override
            public URI url() {
                return standIn.url();
            }

            @Override
            public void begin(Fault fault) {
                List<String> keys = List.copyOf(standIn.objects.keySet());
                switch (fault) {
                    case NONE -> {}
                    case KILLED -> standIn.stop();
                    case HANGS -> standIn.halt();
                    case SLOW -> standIn.delayMillis = 20;
                    case FULL -> standIn.full = true;
                    case EMPTIED -> standIn.objects.clear();
                    case DAMAGED ->
                        standIn.objects.replaceAll((_, text) ->
                                text.substring(0, 2000) + flipped(text.charAt(2000)) + text.substring(2001));
                    case SWAPPED -> {
                        for (int i = 0; i + 1 < keys.size(); i += 2) {
                            String first = standIn.objects.getOrDefault(keys.get(i), "");
                            standIn.objects.put(keys.get(i), standIn.objects.getOrDefault(keys.get(i + 1), ""));
                            standIn.objects.put(keys.get(i + 1), first);
                        }
                    }
                }
            }

            private static char flipped(char digit) {
                return digit == 'A' ? 'B' : 'A';
            }

            @Override
            public void end(Fault fault) throws Exception {
                standIn.full = false;
                standIn.delayMillis = 0;
                standIn.resume();
                if (fault == Fault.KILLED) {
                    standIn.restart();
                }
            }
        };
    }

    @Test
    void everyAnswerIsRightWhileMooncakesOwnServiceFails() throws Exception {
        try (MooncakeServer server = MooncakeServer.start(directory, Duration.ofMillis(200))) {
            everyAnswerIsRight(new Service() {
                @Override
                public URI url() {
                    return server.url();
                }

                @Override
                public void begin(Fault fault) throws Exception {
                    switch (fault) {
                        case KILLED -> server.kill();
                        case HANGS, SLOW -> server.halt();
                        default -> {}
                    }
                }

                @Override
                public void end(Fault fault) throws Exception {
                    switch (fault) {
                        case KILLED -> server.restart();
                        case HANGS, SLOW -> server.resume();
                        default -> {}
                    }
                }
            });
        }
    }
}
