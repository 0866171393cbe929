package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.server.ServerFixture.RawClient;
import java.time.Duration;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;

class IdleConnectionTest {
    private static final String GET = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";

    @AutoClose
    private final ServerFixture fixture = new ServerFixture(config -> config.idleTimeout(Duration.ofSeconds(2)));

    @Test
    void anIdleConnectionIsClosed() throws Exception {
        try (RawClient silent = fixture.raw();
                RawClient unfinished = fixture.raw()) {
            unfinished.send("GET /version HTTP/1.1\r\nHost: te");
            assertThat(silent.closed()).isTrue();
            assertThat(unfinished.closed()).isTrue();
        }
    }

    @Test
    void aConnectionThatIsIdleAgainIsClosed() throws Exception {
        try (RawClient client = fixture.raw()) {
            for (int i = 0; i < 3; i++) {
                client.send(GET);
                assertThat(client.head()).startsWith("HTTP/1.1 200 ");
                client.skip("{\"version\":\"1.2.3\"}".length());
            }
            assertThat(client.closed()).isTrue();
        }
    }

    @Test
    void aRunningRequestIsLongerThanTheIdleDeadline() throws Exception {
        try (RawClient client = fixture.raw();
                RawClient idle = fixture.raw()) {
            client.post("/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
            FakeEngine.Session session = fixture.engine.nextSubmitted();
            // A connection that was opened later has reached its idle deadline.
            assertThat(idle.closed()).isTrue();
            session.output(0, "late");
            session.finish(0, FinishReason.STOP);
            assertThat(client.head()).startsWith("HTTP/1.1 200 ");
            assertThat(client.chunk()).contains("late");
        }
    }
}
