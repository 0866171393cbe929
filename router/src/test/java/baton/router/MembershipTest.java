package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Discovery;
import baton.router.upstream.Instance;
import baton.testkit.Await;
import java.net.URI;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Instances that are added and taken away while the router runs, and that are kept out because their requests fail. */
@Timeout(300)
class MembershipTest {
    private static final String BODY = "{\"prompt\":\"hello\"}";
    private static final String KEY = "an-admin-key";

    @TempDir
    Path directory;

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    private Router router(List<URI> prefills, List<URI> decodes, Discovery.Settings discovery, Optional<String> key) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                prefills,
                decodes,
                ContentKeyedFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                PolicySettings.DEFAULT,
                false,
                new RouterConfig.Sources(discovery, key)));
    }

    private Router withAdmin() {
        return router(List.of(prefill.uri()), List.of(decode.uri()), Discovery.Settings.NONE, Optional.of(KEY));
    }

    private void awaitUp(Router router, String role, int count) {
        fixture.awaitMetric(router, "baton:router_instances{role=\"" + role + "\"}", count);
        fixture.awaitUp(router, role, count);
    }

    private HttpResponse<String> admin(Router router, String action, String role, URI url, String... headers)
            throws Exception {
        return fixture.postTo(
                router,
                "/v1/instances/" + action,
                "{\"role\":\"%s\",\"url\":\"%s\"}".formatted(role, url),
                headers.length == 0 ? new String[] {"Authorization", "Bearer " + KEY} : headers);
    }

    @Test
    void instancesAreAddedAndRemovedOverHttp() throws Exception {
        Router router = withAdmin();
        FakeInstance other = fixture.instance();
        assertThat(admin(router, "add", "decode", other.uri()).body()).contains("\"changed\":true");
        assertThat(admin(router, "add", "decode", other.uri()).body()).contains("\"changed\":false");
        awaitUp(router, "decode", 2);
        for (int i = 0; i < 4; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
        assertThat(other.received).hasSize(2);
        assertThat(admin(router, "remove", "decode", decode.uri()).body()).contains("\"changed\":true");
        assertThat(admin(router, "remove", "decode", decode.uri()).body()).contains("\"changed\":false");
        for (int i = 0; i < 4; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
        assertThat(decode.received).hasSize(2);
        assertThat(other.received).hasSize(6);
    }

    @Test
    void anInstanceThatIsDrainedFinishesItsRequestsAndGetsNoMore() throws Exception {
        FakeInstance other = fixture.instance();
        Router router = router(
                List.of(prefill.uri()), List.of(decode.uri(), other.uri()), Discovery.Settings.NONE, Optional.of(KEY));
        assertThat(admin(router, "drain", "decode", decode.uri()).body()).contains("\"changed\":true", "\"running\":0");
        for (int i = 0; i < 4; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
        assertThat(decode.received).isEmpty();
        assertThat(fixture.get(router, "/v1/instances").body()).contains("\"state\":\"draining\"");
        assertThat(admin(router, "drain", "decode", other.uri()).statusCode()).isEqualTo(200);
        assertThat(fixture.get(router, "/health").statusCode()).isEqualTo(503);
        HttpResponse<String> none = fixture.post(router, BODY);
        assertThat(none.statusCode()).isEqualTo(503);
        assertThat(none.body()).contains("up, but draining");
        assertThat(admin(router, "resume", "decode", decode.uri()).body()).contains("\"changed\":true");
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        assertThat(decode.received).hasSize(1);
    }

    @Test
    void instancesThatStayTakeOverTheHottestPrefixesOfOneThatLeaves() throws Exception {
        FakeInstance loading = fixture.instance();
        FakeInstance computing = fixture.instance();
        prefill.behaviour = (request, response) -> response.end(
                request.uri().startsWith("/v1/hot_prefixes")
                        ? "{\"prefixes\":[{\"token_ids\":[1,2,3],\"cache_salt\":\"s\",\"uses\":9}]}"
                        : "{\"choices\":[],\"kv_transfer_params\":{\"remote_port\":7}}");
        computing.behaviour = FakeInstance.json(500, "{}");
        Router router = router(
                List.of(prefill.uri(), loading.uri(), computing.uri()),
                List.of(decode.uri()),
                Discovery.Settings.NONE,
                Optional.of(KEY));
        HttpResponse<String> drained = fixture.postTo(
                router,
                "/v1/instances/drain",
                "{\"role\":\"prefill\",\"url\":\"%s\",\"keep_cache\":true,\"wait\":10}".formatted(prefill.uri()),
                "Authorization",
                "Bearer " + KEY);
        String kept = "\"kept_cache\":{\"prefixes\":1,\"loaded\":1,\"computed\":0,\"failed\":1,\"done\":true}";
        assertThat(drained.body()).contains("\"takers\":2", "\"running\":0", kept);
        assertThat(fixture.get(router, "/v1/instances").body()).contains(kept);
        assertThat(loading.only().body())
                .contains("\"prompt\":[1,2,3]", "\"max_tokens\":1", "\"cache_salt\":\"s\"", "{\"remote_port\":7}");
        assertThat(prefill.received.getLast().body()).contains("\"prompt\":[1,2,3]");
        assertThat(decode.received).isEmpty();
    }

    @Test
    void thousandsOfPrefixesAreTakenOver() throws Exception {
        FakeInstance loading = fixture.instance();
        int prefixes = 4000;
        String hot = "{\"token_ids\":[1],\"uses\":1},".repeat(prefixes);
        prefill.behaviour = (request, response) -> response.end(
                request.uri().startsWith("/v1/hot_prefixes")
                        ? "{\"prefixes\":[" + hot.substring(0, hot.length() - 1) + "]}"
                        : "{}");
        Router router = router(
                List.of(prefill.uri(), loading.uri()),
                List.of(decode.uri()),
                Discovery.Settings.NONE,
                Optional.of(KEY));
        HttpResponse<String> drained = fixture.postTo(
                router,
                "/v1/instances/drain",
                "{\"role\":\"prefill\",\"url\":\"%s\",\"keep_cache\":true,\"wait\":100}".formatted(prefill.uri()),
                "Authorization",
                "Bearer " + KEY);
        assertThat(drained.body())
                .contains("\"kept_cache\":{\"prefixes\":" + prefixes + ",", "\"failed\":0,\"done\":true}");
    }

    @Test
    void anInstanceChangesItsRole() throws Exception {
        FakeInstance other = fixture.instance();
        Router router = router(
                List.of(prefill.uri(), other.uri()), List.of(decode.uri()), Discovery.Settings.NONE, Optional.of(KEY));
        assertThat(admin(router, "role", "decode", other.uri()).body()).contains("\"changed\":true");
        awaitUp(router, "decode", 2);
        awaitUp(router, "prefill", 1);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '"',
            value = {
                "add    | cook    | http://h:1     | 400 | role: unsupported value 'cook'",
                "add    | prefill | ftp://h:1      | 400 | url:",
                "add    | prefill | http://h:1/x   | 400 | url:",
                "drain  | prefill | http://h:1     | 400 | 'http://h:1' is no prefill instance",
                "role   | prefill | http://h:1     | 400 | 'http://h:1' is no decode instance",
                "add    | prefill | http://h:99999 | 400 | http://host:port",
                "add    | prefill | http://h:65536 | 400 | http://host:port",
                "cook   | prefill | http://h:1     | 404 | no such path",
            })
    void changesThatMakeNoSenseAreRefused(String action, String role, String url, int status, String message)
            throws Exception {
        Router router = withAdmin();
        HttpResponse<String> refused = admin(router, action, role, URI.create(url));
        assertThat(refused.statusCode()).as(refused.body()).isEqualTo(status);
        assertThat(refused.body()).contains(message);
    }

    @Test
    void theRoutersOwnAddressIsNoInstance() throws Exception {
        Router router = withAdmin();
        HttpResponse<String> refused = admin(router, "add", "decode", URI.create("http://127.0.0.1:" + router.port()));
        assertThat(refused.statusCode()).isEqualTo(400);
        assertThat(refused.body()).contains("this router's own address");
    }

    @Test
    void changesNeedTheAdminKey() throws Exception {
        Router router = withAdmin();
        for (String[] headers : List.of(
                new String[] {"Authorization", "Bearer wrong"},
                new String[] {"Authorization", KEY},
                new String[] {"X-Other", "x"})) {
            assertThat(admin(router, "remove", "decode", decode.uri(), headers).statusCode())
                    .isEqualTo(401);
        }
        Router without = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(prefill.uri()),
                List.of(decode.uri()),
                ContentKeyedFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS));
        HttpResponse<String> off = admin(without, "remove", "decode", decode.uri());
        assertThat(off.statusCode()).isEqualTo(403);
        assertThat(off.body()).contains("--admin-key");
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        assertThat(fixture.metric(router, "baton:router_requests_running")).isZero();
    }

    private void write(Path file, String text) throws Exception {
        Path part = directory.resolve("part");
        Files.writeString(part, text);
        Files.move(part, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }

    @Test
    void aFileOfInstancesIsFollowed() throws Exception {
        Path file = directory.resolve("instances.json");
        write(file, "{\"prefill\": [\"%s\"], \"decode\": [\"%s\"]}".formatted(prefill.uri(), decode.uri()));
        Router router = router(
                List.of(),
                List.of(),
                new Discovery.Settings(Optional.of(file), List.of(), Duration.ofMillis(50)),
                Optional.empty());
        awaitUp(router, "prefill", 1);
        awaitUp(router, "decode", 1);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        FakeInstance other = fixture.instance();
        // An unreadable file changes nothing.
        for (String bad : List.of("", "{\"prefill\": \"x\"}", "{\"prefill\": [\"x\"]}", "{\"decodes\": []}")) {
            write(file, bad);
        }
        Files.delete(file);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        write(
                file,
                "{\"prefill\": [\"%s\"], \"decode\": [\"%s\", \"%s\"]}"
                        .formatted(prefill.uri(), decode.uri(), other.uri()));
        awaitUp(router, "decode", 2);
        write(file, "{\"prefill\": [\"%s\"], \"decode\": [\"%s\"]}".formatted(prefill.uri(), other.uri()));
        awaitUp(router, "decode", 1);
        assertThat(fixture.post(router, BODY).headers().firstValue("X-Baton-Decode"))
                .contains(other.uri().toString());
    }

    @Test
    void anInstanceOfAFileKeepsTheRoleThatItChangedTo() throws Exception {
        Path file = directory.resolve("instances.json");
        FakeInstance other = fixture.instance();
        write(file, "{\"prefill\": [\"%s\", \"%s\"]}".formatted(prefill.uri(), other.uri()));
        Router router = router(
                List.of(),
                List.of(decode.uri()),
                new Discovery.Settings(Optional.of(file), List.of(), Duration.ofMillis(20)),
                Optional.of(KEY));
        awaitUp(router, "prefill", 2);
        assertThat(admin(router, "role", "decode", other.uri()).body()).contains("\"changed\":true");
        awaitUp(router, "prefill", 1);
        // Several looks at the file.
        int probes = prefill.probes.get();
        Await.until("time passes", RouterFixture.SOON, () -> prefill.probes.get() > probes + 3);
        awaitUp(router, "prefill", 1);
        awaitUp(router, "decode", 2);
        write(file, "{\"prefill\": [\"%s\"]}".formatted(prefill.uri()));
        awaitUp(router, "decode", 1);
    }

    @Test
    void aFileDoesNotRemoveWhatItHasNotAdded() throws Exception {
        Path file = directory.resolve("instances.json");
        FakeInstance other = fixture.instance();
        write(file, "{\"decode\": [\"%s\", \"%s\"]}".formatted(decode.uri(), other.uri()));
        Router router = router(
                List.of(prefill.uri()),
                List.of(decode.uri()),
                new Discovery.Settings(Optional.of(file), List.of(), Duration.ofMillis(50)),
                Optional.empty());
        awaitUp(router, "decode", 2);
        write(file, "{}");
        awaitUp(router, "decode", 1);
        assertThat(fixture.post(router, BODY).headers().firstValue("X-Baton-Decode"))
                .contains(decode.uri().toString());
    }

    @Test
    void addressesOfADnsNameAreInstances() throws Exception {
        Router router = router(
                List.of(),
                List.of(decode.uri()),
                new Discovery.Settings(
                        Optional.empty(),
                        List.of(new Discovery.Name(
                                Instance.Role.PREFILL,
                                "127.0.0.1",
                                prefill.uri().getPort())),
                        Duration.ofMillis(50)),
                Optional.empty());
        awaitUp(router, "prefill", 1);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        assertThat(prefill.received).hasSize(1);
    }

    @Test
    void anInstanceThatFailsItsRequestsIsLeftOutUntilATrialSucceeds() throws Exception {
        FakeInstance failing = fixture.instance();
        failing.behaviour = FakeInstance.json(500, "{}");
        Router router = router(
                List.of(prefill.uri(), failing.uri()),
                List.of(decode.uri()),
                Discovery.Settings.NONE,
                Optional.empty());
        for (int i = 0; i < 100; i++) {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
        }
        // Five, and a trial after 1, 2, 4, 8 and each further 16 probes.
        assertThat(failing.received).hasSizeBetween(5, 10 + failing.probes.get() / 16);
        assertThat(fixture.get(router, "/v1/instances").body()).contains("requests in a row failed");
        failing.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        int before = failing.received.size();
        Await.until("it is back", RouterFixture.SOON, () -> {
            assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
            return failing.received.size() > before + 3;
        });
    }

    @Test
    void theOnlyInstanceIsAskedAlthoughItFails() throws Exception {
        decode.behaviour = FakeInstance.json(500, "{\"error\":{\"message\":\"broken\"}}");
        Router router = withAdmin();
        for (int i = 0; i < 10; i++) {
            assertThat(fixture.post(router, BODY).body()).contains("broken");
        }
        decode.behaviour = FakeInstance.json(200, RouterFixture.ANSWER);
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(200);
    }
}
