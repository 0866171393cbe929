package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.memory.Platform;
import java.util.Set;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;

class CpuAffinityTest {
    @Test
    void bindingCoresWhereThreadsCannotBePinnedIsAnError() {
        assertThatThrownBy(() ->
                        CpuAffinity.pin(Platform.of("Mac OS X", "aarch64"), "cpu_bind", new TreeSet<>(Set.of(0, 1))))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("cpu_bind: names cores [0, 1]")
                .hasMessageContaining("macosx-arm64; allowed: auto");
    }
}
