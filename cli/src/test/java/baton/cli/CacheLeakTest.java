package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.CacheLeak.Result;
import baton.cli.Instances.Instance;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;

/** A client of a router can find out another client's prompts, unless each has a key. {@code -Dtests.trials=N} asks for more prompts. */
@Tag("thorough")
class CacheLeakTest {
    private static final int TRIALS = Integer.getInteger("tests.trials", 40);
    private static final int TOKENS = 1024;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @TempDir
    Path directory;

    @Test
    void keysKeepPromptsApart() throws Exception {
        Instance instance = INSTANCES.serve("instance", "--enable-prompt-tokens-details");
        Path keys = Files.writeString(
                directory.resolve("keys.json"),
                "{\"keys\": [" + entry("a", "") + ", " + entry("b", "") + ", " + entry("c", ", \"tenant\": \"x\"")
                        + ", " + entry("d", ", \"tenant\": \"x\"") + "]}");
        Instance router = INSTANCES.route(
                "router",
                List.of(instance),
                List.of(instance),
                "--flow",
                "content-keyed",
                "--client-keys-file",
                keys.toString());
        Result apart = measure(router.url(), Optional.of("key-a"), Optional.of("key-b"));
        Result tenant = measure(router.url(), Optional.of("key-c"), Optional.of("key-d"));
        Result open = measure(instance.url(), Optional.empty(), Optional.empty());
        System.out.println("CacheLeakTest: two keys: " + apart);
        System.out.println("CacheLeakTest: two keys of a tenant: " + tenant);
        System.out.println("CacheLeakTest: without keys: " + open);
        assertThat(apart.leaks()).as(apart.toString()).isFalse();
        for (Result shared : List.of(tenant, open)) {
            assertThat(shared.leaks()).as(shared.toString()).isTrue();
        }
        assertThat(open.cached()).isPositive();
    }

    private static Result measure(URI server, Optional<String> victim, Optional<String> attacker) throws Exception {
        return new CacheLeak(server, victim, attacker, TRIALS, TOKENS).measure(new Random(1));
    }

    private static String entry(String name, String more) throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(("key-" + name).getBytes(StandardCharsets.UTF_8));
        return "{\"name\": \"%s\", \"sha256\": \"%s\"%s}"
                .formatted(name, HexFormat.of().formatHex(digest), more);
    }
}
