package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.local.LocalEngine;
import baton.kv.DType;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A warm-up of the real tiny model behind the real server leaves no trace. */
class WarmUpRealEngineTest {
    /** Instances with narrow limits. */
    enum Narrow implements UnaryOperator<EngineConfigBuilder> {
        ONE_SEQUENCE {
            @Override
            public EngineConfigBuilder apply(EngineConfigBuilder config) {
                return config.maxNumSeqs(1).maxWaiting(1);
            }
        },
        NO_LONGER_THAN_A_FEW_TOKENS {
            @Override
            public EngineConfigBuilder apply(EngineConfigBuilder config) {
                return config.maxModelLen(5).numBlocks(1);
            }
        },
        NO_LONGER_THAN_ONE_TOKEN {
            @Override
            public EngineConfigBuilder apply(EngineConfigBuilder config) {
                return config.maxModelLen(1).numBlocks(1);
            }
        },
        IN_SMALL_CHUNKS {
            @Override
            public EngineConfigBuilder apply(EngineConfigBuilder config) {
                return config.maxNumSeqs(2).maxNumBatchedTokens(7).enablePrefixCaching(false);
            }
        }
    }

    @Test
    void warmUpLeavesNoMetricsAndNoCachedBlocks() throws Exception {
        List<String> accessLog = new CopyOnWriteArrayList<>();
        PrometheusMetrics metrics = new PrometheusMetrics(ServerFixture.MODEL);
        try (LocalEngine engine = LocalEngine.start(config().build(), metrics);
                ApiServer server = start(engine, metrics, accessLog)) {
            server.warmUp();
            assertThat(engine.status().isAtRest()).isTrue();
            assertThat(engine.status().usedBlocks()).isZero();
            String text = new String(metrics.scrape(engine.status()), StandardCharsets.UTF_8);
            assertThat(counted(text)).as("series that moved").isEmpty();
            assertThat(accessLog).isEmpty();
        }
    }

    @ParameterizedTest
    @EnumSource
    void warmUpWorksWithNarrowLimits(Narrow narrow) throws Exception {
        PrometheusMetrics metrics = new PrometheusMetrics(ServerFixture.MODEL);
        try (LocalEngine engine = LocalEngine.start(narrow.apply(config()).build(), metrics);
                ApiServer server = start(engine, metrics, new CopyOnWriteArrayList<>())) {
            server.warmUp();
            assertThat(engine.status().usedBlocks()).isZero();
            assertThat(counted(new String(metrics.scrape(engine.status()), StandardCharsets.UTF_8)))
                    .isEmpty();
        }
    }

    @Test
    void warmUpWithoutTimeEndsInReadiness() throws Exception {
        PrometheusMetrics metrics = new PrometheusMetrics(ServerFixture.MODEL);
        try (LocalEngine engine = LocalEngine.start(config().build(), metrics);
                ApiServer server = ApiServer.start(
                        ServerConfig.of(ServerFixture.MODEL)
                                .port(0)
                                .warmUp(Duration.ofNanos(1))
                                .build(),
                        engine,
                        metrics)) {
            server.warmUp();
            assertThat(engine.status().usedBlocks()).isZero();
        }
    }

    private static EngineConfigBuilder config() {
        return EngineConfig.of(FakeEngine.MODEL).dtype(DType.F32).numBlocks(256).threads(1);
    }

    private static ApiServer start(LocalEngine engine, PrometheusMetrics metrics, List<String> accessLog) {
        return ApiServer.start(
                ServerConfig.of(ServerFixture.MODEL)
                        .port(0)
                        .apiKey("secret")
                        .accessLog(accessLog::add)
                        .warmUp(Duration.ofSeconds(2))
                        .build(),
                engine,
                metrics);
    }

    /** Series that are not zero, except those of the configuration. */
    private static List<String> counted(String metrics) {
        return metrics.lines()
                .filter(line -> !line.startsWith("#")
                        && !line.startsWith("vllm:cache_config_info")
                        && !line.startsWith("vllm:lora_requests_info")
                        && !line.startsWith("baton:kv_blocks_total")
                        && !line.endsWith(" 0.0")
                        && !line.endsWith(" 0"))
                .toList();
    }
}
