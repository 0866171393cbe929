package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.RouterBench.Round;
import baton.bench.RouterReport.Case;
import baton.bench.RouterReport.Load;
import baton.bench.RouterReport.Streams;
import baton.bench.RouterReport.Watched;
import io.vertx.core.Future;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class RouterReportTest {
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
        Case direct = new Case(RouterBench.DIRECT, List.of(whole), List.of(whole), List.of());
        Case router = new Case(RouterBench.ROUTER, List.of(whole), List.of(load(10, 1)), List.of(whole));
        RouterReport report = new RouterReport(
                Machine.here(),
                ProcessorPauses.NONE,
                1,
                10,
                5,
                List.of(direct, router),
                new Streams(1, 1, Optional.empty()),
                List.of(new Watched(1 << 20, load(10, 2))));
        StringWriter text = new StringWriter();
        report.print(new PrintWriter(text));
        assertThat(text.toString())
                .contains(
                        "3 of 30 requests of the rounds of router failed and do not count above",
                        "the connection was closed")
                .doesNotContain("rounds of direct failed");
        assertThat(report.toJson().path("cases").path(1).path("failed").asInt()).isEqualTo(3);
    }
}
