package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Program.Ended;
import baton.cluster.ServerProcess;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** {@code baton bench serve} against a server of the tiny model. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class BenchServeTest {
    @TempDir
    private static Path directory;

    private ServerProcess server;
    private URI url;

    @BeforeAll
    void start() throws Exception {
        server = ServerProcess.start(
                "serve",
                Program.command(),
                List.of("serve", "--port", "0", "--no-warmup", "--disable-uvicorn-access-log"),
                directory.resolve("serve.log"));
        url = server.awaitReady(Instances.DEADLINE);
    }

    @AfterAll
    void stop() {
        server.process().askToStop();
        server.process().awaitEnd(Instances.DEADLINE);
    }

    private Ended bench(String... options) throws Exception {
        List<String> arguments = new ArrayList<>(List.of("bench", "serve", "--base-url", url.toString()));
        arguments.addAll(List.of(options));
        return Program.run(arguments);
    }

    @Test
    void aLoadIsReportedInLinesJsonAndAPage() throws Exception {
        Path page = directory.resolve("page.html");
        Ended ended = bench(
                "--num-prompts",
                "6",
                "--request-rate",
                "40",
                "--random_input_len",
                "30",
                "--random-output-len",
                "5",
                "--random-range-ratio",
                "{\"input\": 0.2, \"output\": 0}",
                "--temperature",
                "0",
                "--goodput",
                "ttft:60000",
                "e2el:60000",
                "--metadata",
                "hall=7",
                "--save-result",
                "--save-detailed",
                "--result-dir",
                directory.resolve("results").toString(),
                "--result-filename",
                "figures.json",
                "--html",
                page.toString());
        assertThat(ended.status()).as(ended.err()).isZero();
        assertThat(ended.out())
                .contains(
                        "Successful requests:                     6 ",
                        "Total generated tokens:                  30 ",
                        "P99 ITL (ms):",
                        "TTFT from due:");
        JsonNode figures = JsonMapper.builder()
                .build()
                .readTree(Files.readString(directory.resolve("results").resolve("figures.json")));
        assertThat(figures.path("completed").asInt()).isEqualTo(6);
        assertThat(figures.path("request_goodput").asDouble())
                .isEqualTo(figures.path("request_throughput").asDouble());
        assertThat(figures.path("hall").asString()).isEqualTo("7");
        assertThat(figures.path("output_lens").valueStream().map(JsonNode::asInt))
                .containsOnly(5);
        assertThat(figures.path("input_lens")
                        .valueStream()
                        .mapToInt(JsonNode::asInt)
                        .boxed())
                .allSatisfy(length -> assertThat(length).isBetween(22, 40));
        assertThat(Files.readString(page)).contains("<svg", "</html>");
    }

    @Test
    void theServersTokenizerMakesPromptsOfConversationsForChat() throws Exception {
        Ended ended = bench(
                "--backend",
                "openai-chat",
                "--model",
                "tiny-ledger",
                "--dataset-name",
                "conversation",
                "--conversation-turns",
                "2",
                "--conversation-input-len",
                "12",
                "--output-len",
                "4",
                "--num-prompts",
                "4",
                "--max-concurrency",
                "2",
                "--percentile-metrics",
                "e2el,client_queue_time");
        assertThat(ended.status()).as(ended.err()).isZero();
        assertThat(ended.out())
                .contains(
                        "Successful requests:                     4 ",
                        "Maximum request concurrency:             2 ",
                        "P99 E2EL (ms):",
                        "Mean Client Queue Time (ms):")
                .doesNotContain("TTFT (ms)", "from due");
    }

    @ParameterizedTest
    @CsvSource({
        "--request-rate,often,request-rate",
        "--burstiness,-1,burstiness",
        "--backend,tgi,openai-chat",
        "--endpoint,/v1/models,endpoint",
        "--dataset-name,sonnet,prefix_repetition",
        "--dataset-path,some.json,dataset-path",
        "--dataset-name=prefix_repetition --input-len,9,input-len",
        "--num-prompts,0,num-prompts",
        "--random-range-ratio,2,random-range-ratio",
        "--max-concurrency,0,max-concurrency",
        "--goodput,itl:4,goodput",
        "--metric-percentiles,101,metric-percentiles",
        "--percentile-metrics,ttfb,percentile-metrics",
        "--ramp-up-strategy,linear,ramp-up-start-rps",
        "--metadata,seven,metadata",
        "--tokenizer,/nowhere,tokenizer.json"
    })
    void anOptionThatIsWrongIsRefusedByName(String option, String value, String named) {
        StringWriter err = new StringWriter();
        List<String> arguments = new ArrayList<>(List.of("bench", "serve", "--base-url", url.toString()));
        arguments.addAll(List.of(option.split(" ")));
        arguments.add(value);
        int status = Baton.commandLine(new ServeCommand())
                .setErr(new PrintWriter(err))
                .execute(arguments.toArray(String[]::new));
        assertThat(status).as(err.toString()).isEqualTo(2);
        assertThat(err.toString()).contains(named);
    }
}
