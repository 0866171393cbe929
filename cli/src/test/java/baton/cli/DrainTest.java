package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.testkit.Await;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The effects of SIGTERM on an instance. */
class DrainTest {
    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @Test
    void runningRequestsFinishAndNewOnesAreRefused() throws Exception {
        Instance instance = INSTANCES.serve("drained", "--shutdown-timeout", "120");
        // Eight answers in one: long enough not to end before the test has looked.
        HttpResponse<InputStream> answer = instance.stream(
                "/v1/completions",
                Instances.greedy(Ledgers.prompt(50, 3), 600)
                        .put("ignore_eos", true)
                        .put("n", 8));
        assertThat(answer.statusCode()).isEqualTo(200);
        CompletableFuture<List<String>> events = CompletableFuture.supplyAsync(() -> {
            try (BufferedReader reader =
                    new BufferedReader(new InputStreamReader(answer.body(), StandardCharsets.UTF_8))) {
                return reader.lines().filter(line -> line.startsWith("data: ")).toList();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        });
        instance.terminate();
        Await.until(
                Instances.DEADLINE,
                () -> "it still takes requests",
                () -> instance.get("/health").status() == 503);
        Reply refused = instance.complete(new int[] {5, 6, 7}, 1);
        assertThat(refused.status()).isEqualTo(503);
        assertThat(refused.response().headers().firstValueAsLong("Retry-After")).hasValue(1);
        assertThat(refused.error()).contains("stopping");
        assertThat(events.get(2, TimeUnit.MINUTES)).hasSizeGreaterThan(8 * 300).endsWith("data: [DONE]");
        assertThat(instance.awaitExit()).isZero();
    }

    @Test
    void requestsAreCutOffAtTheShutdownTimeout() throws Exception {
        Instance instance = INSTANCES.serve("hasty", "--shutdown-timeout", "0");
        HttpResponse<InputStream> answer = instance.stream(
                "/v1/completions", Instances.greedy(Ledgers.prompt(50, 3), 1900).put("ignore_eos", true));
        assertThat(answer.statusCode()).isEqualTo(200);
        instance.terminate();
        try (BufferedReader reader = new BufferedReader(new InputStreamReader(answer.body(), StandardCharsets.UTF_8))) {
            List<String> events =
                    reader.lines().filter(line -> line.startsWith("data: ")).toList();
            assertThat(events).endsWith("data: [DONE]");
            assertThat(events.get(events.size() - 2)).contains("\"abort\"");
        }
        assertThat(instance.awaitExit()).isZero();
    }

    @Test
    void aSecondSignalEndsTheProcessAtOnce() throws Exception {
        Instance instance = INSTANCES.serve("impatient");
        HttpResponse<InputStream> answer = instance.stream(
                "/v1/completions", Instances.greedy(Ledgers.prompt(50, 3), 1900).put("ignore_eos", true));
        assertThat(answer.statusCode()).isEqualTo(200);
        instance.terminate();
        Await.until(
                Instances.DEADLINE,
                () -> "it still takes requests",
                () -> instance.get("/health").status() == 503);
        instance.terminate();
        assertThat(instance.awaitExit()).isEqualTo(143);
        answer.body().close();
    }
}
