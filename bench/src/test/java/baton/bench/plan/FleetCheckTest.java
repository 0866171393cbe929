package baton.bench.plan;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.plan.Planner.Plan;
import baton.bench.plan.Planner.Prediction;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServerRequest;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Against a server that answers after a time, and refuses requests while it has {@value #ROOM}. */
class FleetCheckTest {
    private static final int ROOM = 4;
    private static final int MILLIS = 10;
    private static final String ANSWER = "data: {\"choices\": [{\"text\": \"x\"}]}\n\ndata: [DONE]\n\n";

    private final Vertx vertx = Vertx.vertx();
    private final AtomicInteger answered = new AtomicInteger();
    private final AtomicInteger active = new AtomicInteger();
    private final List<String> progress = new CopyOnWriteArrayList<>();
    private int most = Integer.MAX_VALUE;
    private String url;

    @BeforeEach
    void start() throws Exception {
        url = "http://127.0.0.1:"
                + vertx.createHttpServer()
                        .requestHandler(this::serve)
                        .listen(0, "127.0.0.1")
                        .toCompletionStage()
                        .toCompletableFuture()
                        .get(60, TimeUnit.SECONDS)
                        .actualPort();
    }

    @AfterEach
    void stop() throws Exception {
        vertx.close().toCompletionStage().toCompletableFuture().get(60, TimeUnit.SECONDS);
    }

    private void serve(HttpServerRequest request) {
        if (request.method().equals(HttpMethod.GET)) {
            var _ = request.response().end("{\"data\": [{\"id\": \"stub\"}]}");
        } else if (active.get() == ROOM || answered.get() == most) {
            var _ = request.response().setStatusCode(503).end("too many");
        } else {
            active.incrementAndGet();
            vertx.setTimer(MILLIS, _ -> {
                active.decrementAndGet();
                answered.incrementAndGet();
                var _ = request.response().end(ANSWER);
            });
        }
    }

    private JsonNode check(double predicted) throws IOException {
        MachineProfile machine =
                new MachineProfile("test", 1, Curve.constant(0.01), Curve.constant(0.01), 0, 1, Map.of(), 64);
        Plan plan = new Plan(
                new Fleet.Colocated(machine, 1, 512), predicted, new Prediction(predicted, 1, predicted, 0, 0, 0, 0));
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new FleetCheck(new Goals(2, 2, 0.9), Workload.of(8, 1), 0.3, 1000, progress::add).run(url, plan, json);
        return json;
    }

    @Test
    void requestsThatTheServerRefusesAreNotServedWell() throws IOException {
        JsonNode result = check(3000);
        assertThat(progress).anyMatch(line -> line.contains("failed: HTTP 503: too many"));
        assertThat(result.at("/tried/0/well_served").asDouble()).isLessThan(0.5);
        // By Erlang's formula a tenth of the requests finds four others at 205 requests/s.
        double measured = result.path("measured").asDouble();
        assertThat(measured).isBetween(50.0, 400.0);
        assertThat(result.path("tried")
                        .valueStream()
                        .map(each -> each.path("rate").asDouble()))
                .anySatisfy(rate -> assertThat(rate).isLessThanOrEqualTo(measured))
                .anySatisfy(rate -> assertThat(rate).isGreaterThanOrEqualTo(measured));
    }

    @Test
    void aPredictionThatIsManyTimesTooLowIsFoundOut() throws IOException {
        JsonNode result = check(40);
        assertThat(result.path("measured").asDouble()).isBetween(50.0, 400.0);
        assertThat(result.path("tried").size()).isLessThanOrEqualTo(12);
    }

    @Test
    void aServerThatAnswersNothingEndsTheMeasurement() {
        most = 4;
        assertThatThrownBy(() -> check(300)).isInstanceOf(IOException.class).hasMessageContaining("HTTP 503: too many");
    }
}
