package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.RouterBench.Round;
import baton.bench.RouterFigures.Load;
import baton.bench.RouterFigures.Watched;
import io.vertx.core.Future;
import java.io.IOException;
import java.util.List;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class RouterFiguresTest {
    private static Load load(int requests, int failing) throws Exception {
        Round round = new Round(requests, System.nanoTime());
        round.askAgain(
                (name, _, _) -> Integer.parseInt(name.substring(1)) < failing
                        ? Future.failedFuture("the connection was closed")
                        : Future.succeededFuture(),
                1);
        return round.await();
    }

    @Test
    void aRoundWithFailedRequestsHasTheResultsOfTheOthers() throws Exception {
        Load load = load(10, 3);
        assertThat(load.nanos()).hasSize(7);
        assertThat(load.failed()).isEqualTo(3);
        assertThat(load.failure().orElseThrow()).endsWith("the connection was closed");
        assertThat(load.rate()).isPositive();
        assertThatThrownBy(() -> load(10, 10))
                .isInstanceOf(IOException.class)
                .hasMessageStartingWith("all of 10 requests failed, such as: ");
    }

    @Test
    void failedRequestsArePrintedAndCounted() throws Exception {
        Load whole = load(10, 0);
        RouterFigures figures = new RouterFigures(1, 10, 100);
        for (String name : List.of(RouterBench.DIRECT, RouterBench.ROUTER)) {
            figures.of(name).closed().add(whole);
            figures.of(name).open().add(name.equals(RouterBench.ROUTER) ? load(10, 1) : whole);
        }
        figures.of(RouterBench.ROUTER).meanwhile().add(whole);
        figures.watched().add(new Watched(1 << 20, load(10, 2)));
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        figures.write(json);
        String text = RouterBench.FIGURES.text(json);
        assertThat(text)
                .contains(
                        "3 of 30 requests of the rounds of router failed and do not count above",
                        "the connection was closed")
                .doesNotContain("rounds of direct failed");
        assertThat(json.path("cases").path(1).path("failed").asInt()).isEqualTo(3);
    }

    @Test
    void roundsThatWereMeasuredAreShownBeforeTheOthersAre() throws Exception {
        RouterFigures figures = new RouterFigures(1, 10, 100);
        figures.of(RouterBench.DIRECT).closed().add(load(10, 0));
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        figures.write(json);
        assertThat(RouterBench.FIGURES.text(json))
                .contains("requests/s", "direct")
                .doesNotContain("added by");
    }
}
