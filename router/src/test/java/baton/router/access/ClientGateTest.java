package baton.router.access;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class ClientGateTest {
    private final AtomicLong now = new AtomicLong(-5);

    private static String sha256(String key) throws Exception {
        return HexFormat.of()
                .formatHex(MessageDigest.getInstance("SHA-256").digest(key.getBytes(StandardCharsets.UTF_8)));
    }

    private static ClientKeys keys(String limits) throws Exception {
        return ClientKeys.parse(
                "{\"keys\": [{\"name\": \"a\", \"sha256\": \"%s\"%s}, {\"name\": \"b\", \"sha256\": \"%s\"}]}"
                        .formatted(sha256("key-a"), limits, sha256("key-b")));
    }

    private ClientGate gate(String limits) throws Exception {
        return new ClientGate(keys(limits), now::get);
    }

    private static ClientPass admitted(ClientAdmission admission) {
        assertThat(admission).isInstanceOf(ClientAdmission.Admitted.class);
        return ((ClientAdmission.Admitted) admission).pass();
    }

    @Test
    void aKeyIsFoundByItsDigest() throws Exception {
        ClientGate gate = gate("");
        assertThat(admitted(gate.enter(List.of("Bearer key-a"))).client()).contains("a");
        assertThat(admitted(gate.enter(List.of("bearer  key-b "))).client()).contains("b");
        assertThat(gate.identify(List.of("Bearer key-b"))).contains("b");
    }

    @ParameterizedTest
    @CsvSource({"Bearer key-c", "Bearer", "key-a", "Basic key-a", "Bearer key-a key-b", "''"})
    void anythingElseIsUnknown(String authorization) throws Exception {
        assertThat(gate("").enter(List.of(authorization))).isInstanceOf(ClientAdmission.Unknown.class);
    }

    @Test
    void noHeaderAndTwoAreUnknown() throws Exception {
        assertThat(gate("").enter(List.of())).isInstanceOf(ClientAdmission.Unknown.class);
        assertThat(gate("").enter(List.of("Bearer key-a", "Bearer key-a"))).isInstanceOf(ClientAdmission.Unknown.class);
    }

    @Test
    void requestsInFlightAreLimitedByKeyAndReleasedOnce() throws Exception {
        ClientGate gate = gate(", \"max_requests_in_flight\": 2");
        ClientPass first = admitted(gate.enter(List.of("Bearer key-a")));
        ClientPass second = admitted(gate.enter(List.of("Bearer key-a")));
        assertThat(gate.enter(List.of("Bearer key-a")))
                .isEqualTo(new ClientAdmission.Limited(
                        "a", "the API key 'a' has 2 requests in flight, the most allowed", 1));
        admitted(gate.enter(List.of("Bearer key-b")));
        first.release();
        first.release();
        assertThat(gate.inFlight("a")).isEqualTo(1);
        admitted(gate.enter(List.of("Bearer key-a"))).release();
        second.release();
        assertThat(gate.inFlight("a")).isZero();
    }

    @Test
    void tokensOfAMinuteComeBackEvenlyAndMayBeOverdrawn() throws Exception {
        ClientGate gate = gate(", \"tokens_per_minute\": 600");
        ClientPass first = admitted(gate.enter(List.of("Bearer key-a")));
        first.took(590);
        admitted(gate.enter(List.of("Bearer key-a"))).ofPart().took(109);
        // 99 too many, and one more is needed: 10 come back in a second.
        assertThat(gate.enter(List.of("Bearer key-a")))
                .isEqualTo(
                        new ClientAdmission.Limited("a", "the API key 'a' has taken the 600 tokens of a minute", 10));
        now.addAndGet(TimeUnit.MILLISECONDS.toNanos(9_800));
        assertThat(gate.enter(List.of("Bearer key-a"))).isInstanceOf(ClientAdmission.Limited.class);
        now.addAndGet(TimeUnit.MILLISECONDS.toNanos(300));
        admitted(gate.enter(List.of("Bearer key-a"))).release();
        assertThat(gate.inFlight("a")).isEqualTo(2);
        now.addAndGet(TimeUnit.HOURS.toNanos(1));
        admitted(gate.enter(List.of("Bearer key-a"))).took(601);
        assertThat(gate.enter(List.of("Bearer key-a"))).isInstanceOf(ClientAdmission.Limited.class);
    }

    @Test
    void requestsOfAMinuteComeBackEvenly() throws Exception {
        ClientGate gate = gate(", \"requests_per_minute\": 6");
        for (int i = 0; i < 6; i++) {
            admitted(gate.enter(List.of("Bearer key-a"))).release();
        }
        assertThat(gate.enter(List.of("Bearer key-a")))
                .isEqualTo(new ClientAdmission.Limited("a", "the API key 'a' may send 6 requests a minute", 10));
        now.addAndGet(TimeUnit.MILLISECONDS.toNanos(8_500));
        assertThat(((ClientAdmission.Limited) gate.enter(List.of("Bearer key-a"))).retryAfterSeconds())
                .isEqualTo(2);
        now.addAndGet(TimeUnit.MILLISECONDS.toNanos(1_600));
        admitted(gate.enter(List.of("Bearer key-a"))).release();
        assertThat(gate.enter(List.of("Bearer key-a"))).isInstanceOf(ClientAdmission.Limited.class);
        now.addAndGet(TimeUnit.HOURS.toNanos(1));
        for (int i = 0; i < 6; i++) {
            admitted(gate.enter(List.of("Bearer key-a"))).release();
        }
        assertThat(gate.enter(List.of("Bearer key-a"))).isInstanceOf(ClientAdmission.Limited.class);
        assertThat(gate.inFlight("a")).isZero();
    }

    @Test
    void replacedKeysCountOn() throws Exception {
        ClientGate gate = gate(", \"max_requests_in_flight\": 2");
        ClientPass running = admitted(gate.enter(List.of("Bearer key-a")));
        gate.replace(keys(", \"max_requests_in_flight\": 1"));
        assertThat(gate.enter(List.of("Bearer key-a"))).isInstanceOf(ClientAdmission.Limited.class);
        running.release();
        admitted(gate.enter(List.of("Bearer key-a"))).release();
        gate.replace(ClientKeys.parse("{\"keys\": []}"));
        assertThat(gate.enter(List.of("Bearer key-a"))).isInstanceOf(ClientAdmission.Unknown.class);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "{}|keys: is missing",
                "{\"keys\": 1}|keys: ",
                "{\"key\": []}|key: is unknown; there are keys",
                "{\"keys\": [{\"name\": \"a b\"}]}|keys[0].name: unsupported value 'a b'",
                "{\"keys\": [{\"name\": \"a\", \"sha256\": \"secret\"}]}|keys[0].sha256: must be 64 hexadecimal digits",
                "{\"keys\": [{\"name\": \"a\", \"rpm\": 5}]}|keys[0].rpm: is unknown; there are max_requests_in_flight,",
                "{\"keys\": [{\"name\": \"a\", \"sha256\": \"$A\", \"requests_per_minute\": 0}]}|keys[0].requests_per_minute: is 0, must be at least 1",
                "{\"keys\": [{\"name\": \"a\", \"sha256\": \"$A\"}, {\"name\": \"a\", \"sha256\": \"$B\"}]}|keys[1].name: 'a' is given twice",
                "{\"keys\": [{\"name\": \"a\", \"sha256\": \"$A\"}, {\"name\": \"b\", \"sha256\": \"$A\"}]}|keys[1].sha256: is that of another",
            })
    void wrongFilesAreNamed(String json, String message) {
        String filled = json.replace("$A", "a".repeat(64)).replace("$B", "b".repeat(64));
        assertThatThrownBy(() -> ClientKeys.parse(filled))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(message)
                .hasMessageNotContaining("secret");
    }
}
