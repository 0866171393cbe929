package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.MixedPrompts.Asked;
import baton.cluster.LocalCluster;
import baton.cluster.LocalCluster.Connector;
import baton.cluster.LocalCluster.Layout;
import baton.testkit.RealModels;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import tools.jackson.databind.JsonNode;

/**
 * Prefill and decode instances with published models and a router, as {@code baton up} starts them, with each connector that needs nothing
 * beside this host: in fp32 greedy tokens are those of one instance alone, and the decode instance computes no block of a prompt.
 */
@Tag("real")
@Isolated("The instances need the cores and the memory.")
@Timeout(600)
class RealHandoversTest {
    private static final int AT_ONCE = 8;
    private static final int MAX_TOKENS = 12;
    private static final int BLOCK = 16;
    private static final String KV_BYTES = "512M";
    private static final List<String> SERVE = List.of("--dtype", "float32", "--max-model-len", "2048");

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /** The answers of one instance, by the model's file or directory. */
    private static final Map<Path, List<Asked>> ALONE = new HashMap<>();

    record Cell(RealModels model, boolean gguf, Connector connector) {
        Path assumePresent() {
            return gguf ? model.assumeGguf() : model.assumeCheckpoint();
        }

        @Override
        public String toString() {
            return model + (gguf ? " as GGUF, " : ", ") + connector;
        }
    }

    static List<Cell> cells() {
        List<Cell> cells = new ArrayList<>();
        for (RealModels model : RealModels.values()) {
            for (boolean gguf : new boolean[] {false, true}) {
                for (Connector connector : Connector.values()) {
                    if (connector != Connector.MooncakeStoreConnector) {
                        cells.add(new Cell(model, gguf, connector));
                    }
                }
            }
        }
        return cells;
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("cells")
    void tokensAreThoseOfOneInstanceAlone(Cell cell) throws Exception {
        Path model = cell.assumePresent();
        List<Asked> alone = alone(cell.model, model);
        List<int[]> prompts = alone.stream().map(Asked::prompt).toList();
        List<String> options = Stream.concat(SERVE.stream(), Stream.of("--kv-cache-memory-bytes", KV_BYTES))
                .toList();
        try (LocalCluster cluster =
                        LocalCluster.start(Layout.of(Program.command()), model, cell.connector.with(options), 0, true);
                ApiClient client = new ApiClient()) {
            try {
                Prompts before = Prompts.of(client.metrics(cluster.decode()));
                List<Asked> answers = MixedPrompts.ask(prompts, AT_ONCE, prompt -> answer(cluster.router(), prompt));
                for (int i = 0; i < alone.size(); i++) {
                    assertThat(answers.get(i).answer())
                            .as("prompt %d, of %d tokens", i, prompts.get(i).length)
                            .isEqualTo(alone.get(i).answer());
                }
                Prompts prompted = Prompts.of(client.metrics(cluster.decode())).since(before);
                assertThat(prompted.computed()).as("%s", prompted).isLessThan(BLOCK * prompts.size());
                assertThat(prompted.transferred()).as("%s", prompted).isGreaterThan(prompted.cached());
            } catch (AssertionError | Exception e) {
                printLogs(cluster.directory());
                throw e;
            }
        }
    }

    private static List<Asked> alone(RealModels model, Path path) throws Exception {
        List<Asked> known = ALONE.get(path);
        if (known == null) {
            List<String> options = new ArrayList<>(SERVE);
            options.add("--no-enable-prefix-caching");
            Instance instance =
                    INSTANCES.serve("alone-" + path.getFileName(), path, KV_BYTES, options.toArray(String[]::new));
            URI url = instance.url();
            known = MixedPrompts.ask(prompts(model), AT_ONCE, prompt -> answer(url, prompt));
            instance.kill();
            ALONE.put(path, known);
        }
        return known;
    }

    private static int[] answer(URI server, int[] prompt) throws Exception {
        String body =
                Instances.greedy(prompt, MAX_TOKENS).put("ignore_eos", true).toString();
        return INSTANCES.post(server, "/v1/completions", body).tokenIds();
    }

    /** The prompts that transformers was asked too. */
    private static List<int[]> prompts(RealModels model) {
        JsonNode goldens = Instances.JSON.readTree(Program.ROOT
                .resolve("engine/src/test/resources/baton/engine/model/real", model.checkpoint() + ".json")
                .toFile());
        return goldens.valueStream()
                .map(each -> Instances.ints(each.path("prompt_ids")))
                .toList();
    }

    private static void printLogs(Path directory) throws Exception {
        for (String process : List.of("prefill", "decode", "router")) {
            System.err.printf("---- %s:%n%s", process, Files.readString(directory.resolve(process + ".log")));
        }
    }
}
