package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Ticker;
import baton.router.metrics.RouterMetrics;
import baton.testkit.Await;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(300)
class FollowedFilesTest {
    /** As of certificates that a server could not take over. */
    @Test
    void contentsThatCouldNotBePutToUseAreTriedAgain(@TempDir Path directory) throws Exception {
        Path file = Files.writeString(directory.resolve("file"), "old");
        Vertx vertx = Vertx.vertx();
        List<String> tried = new CopyOnWriteArrayList<>();
        try (RouterMetrics metrics = new RouterMetrics();
                FollowedFiles followed = new FollowedFiles(
                        vertx,
                        "a file",
                        List.of(file),
                        FollowedFiles.read(List.of(file)),
                        contents -> {
                            tried.add(new String(contents.getFirst(), StandardCharsets.UTF_8));
                            return tried.size() == 1 ? Future.failedFuture("not now") : Future.succeededFuture();
                        },
                        metrics,
                        Ticker.system())) {
            Files.writeString(file, "new");
            // The timer may look as well.
            for (int i = 0; i < 6; i++) {
                followed.look().toCompletionStage().toCompletableFuture().get(60, TimeUnit.SECONDS);
            }
            Await.until("both", RouterFixture.SOON, () -> tried.size() == 2);
            followed.look().toCompletionStage().toCompletableFuture().get(60, TimeUnit.SECONDS);
            assertThat(tried).containsExactly("new", "new");
            assertThat(metrics.scrape())
                    .contains("baton:router_followed_files_total{file=\"a file\",result=\"refused\"} 1.0")
                    .contains("baton:router_followed_files_total{file=\"a file\",result=\"used\"} 1.0");
        } finally {
            vertx.close().toCompletionStage().toCompletableFuture().get(60, TimeUnit.SECONDS);
        }
    }
}
