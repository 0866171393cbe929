package baton.server;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.EngineUnavailableException;
import baton.engine.FinishReason;
import baton.kv.ConfigException;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;

/** When a server with a warm-up is ready, and its answers until then. */
class WarmUpTest {
    private static final String COMPLETION = "{\"prompt\":\"Once\",\"max_tokens\":1}";

    private final List<String> accessLog = new CopyOnWriteArrayList<>();

    @AutoClose
    private final ServerFixture fixture =
            new ServerFixture(config -> config.warmUp(Duration.ofHours(1)).accessLog(accessLog::add));

    @Test
    void theServerIsNotReadyBeforeTheWarmUpHasEnded() throws Exception {
        CountDownLatch mayAnswer = new CountDownLatch(1);
        fixture.engine.script(session -> {
            try {
                assertThat(mayAnswer.await(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS))
                        .isTrue();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            for (int index = 0; index < session.request.sampling().n(); index++) {
                session.output(index, "word");
                session.finish(index, FinishReason.LENGTH);
            }
        });
        CompletableFuture<Void> warm = CompletableFuture.runAsync(fixture.server::warmUp);
        assertThat(fixture.engine.nextSubmitted().request.prompt()).hasSize(1);
        for (String path : List.of("/health", "/ping")) {
            HttpResponse<String> health = fixture.get(path);
            assertThat(health.statusCode()).isEqualTo(503);
            assertThat(ServerFixture.json(health).at("/error/message").asString())
                    .isEqualTo("the instance is warming up");
        }
        HttpResponse<String> refused = fixture.post("/v1/completions", COMPLETION);
        assertThat(refused.statusCode()).isEqualTo(503);
        assertThat(refused.headers().firstValue("Retry-After")).contains("1");
        assertThat(warm).isNotDone();

        mayAnswer.countDown();
        warm.get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS);
        assertThat(fixture.get("/health").statusCode()).isEqualTo(200);
        assertThat(fixture.post("/v1/completions", COMPLETION).statusCode()).isEqualTo(200);
        assertThat(accessLog).as("the client's own").hasSize(2);
        assertThat(accessLog.getFirst()).contains(" 503 ").contains("warming up");
        assertThat(accessLog.getLast()).contains(" 200 ");
    }

    /** A busy machine computes nothing within the budget. */
    @Test
    void theFirstPromptIsWaitedForWhateverTheBudget() throws Exception {
        CountDownLatch mayAnswer = new CountDownLatch(1);
        try (ServerFixture slow = new ServerFixture(config -> config.warmUp(Duration.ofMillis(1)))) {
            slow.engine.script(session -> {
                try {
                    assertThat(mayAnswer.await(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS))
                            .isTrue();
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                }
                session.output(0, "word");
                session.finish(0, FinishReason.LENGTH);
            });
            CompletableFuture<Void> warm = CompletableFuture.runAsync(slow.server::warmUp);
            assertThat(slow.engine.nextSubmitted().request.prompt()).hasSize(1);
            assertThatThrownBy(() -> warm.get(300, TimeUnit.MILLISECONDS)).isInstanceOf(TimeoutException.class);
            assertThat(slow.get("/health").statusCode()).isEqualTo(503);
            mayAnswer.countDown();
            warm.get(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS);
            assertThat(slow.engine.submittedCount())
                    .as("prompts after the budget")
                    .isZero();
            assertThat(slow.get("/health").statusCode()).isEqualTo(200);
        }
    }

    @Test
    void warmUpPromptsGetLonger() throws Exception {
        fixture.engine.answers("word");
        fixture.server.warmUp();
        List<Integer> lengths = new CopyOnWriteArrayList<>();
        while (fixture.engine.submittedCount() > 0) {
            lengths.add(fixture.engine.nextSubmitted().request.prompt().length);
        }
        assertThat(lengths).startsWith(1, 16).contains(1024).allMatch(length -> length <= 1024);
        assertThat(accessLog).isEmpty();
    }

    @Test
    void aFailedWarmUpEndsInReadiness() throws Exception {
        fixture.engine.answers("word");
        fixture.engine.refusesAfter(2, new ConfigException("prompt", "is too long"));
        fixture.server.warmUp();
        assertThat(fixture.get("/health").statusCode()).isEqualTo(200);
    }

    @Test
    void warmUpOfAnEngineThatCannotComputeFails() throws Exception {
        fixture.engine.script(
                session -> session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("no kernel")));
        assertThatThrownBy(fixture.server::warmUp)
                .isInstanceOf(EngineUnavailableException.class)
                .hasMessageContaining("no kernel");
        assertThat(fixture.get("/health").statusCode()).isEqualTo(503);
    }

    @Test
    void warmUpFailsIfTheEngineFails() throws Exception {
        fixture.engine.script(session -> {
            fixture.engine.fails("out of memory");
            session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("out of memory"));
        });
        assertThatThrownBy(fixture.server::warmUp).isInstanceOf(EngineUnavailableException.class);
        assertThat(fixture.get("/health").statusCode()).isEqualTo(503);
    }
}
