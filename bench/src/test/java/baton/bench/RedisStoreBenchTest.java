package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class RedisStoreBenchTest {
    @Test
    void everyCaseIsMeasured() throws Exception {
        Optional<RedisStoreBench> bench = RedisStoreBench.find(System.getenv("PATH"));
        assumeTrue(bench.isPresent(), "redis-server or redis-benchmark is not on the PATH");
        RedisStoreReport report = bench.get().run(new RedisStoreBench.Options(128 << 10, 16, 256, 2, 1));
        assertThat(report.rates().values())
                .allSatisfy(rounds -> assertThat(rounds)
                        .singleElement()
                        .satisfies(rate -> assertThat(rate).isPositive()));
        StringWriter text = new StringWriter();
        report.print(new PrintWriter(text));
        assertThat(text.toString()).contains("put", "get", "contains, present", "redis-benchmark EXISTS");
        assertThat(report.toJson().size()).isEqualTo(8);
    }
}
