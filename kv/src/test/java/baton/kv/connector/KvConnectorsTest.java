package baton.kv.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;

class KvConnectorsTest {
    @Test
    void noneIsNone() {
        assertThat(KvConnectors.find(KvTransferConfig.none())).isEmpty();
    }

    @Test
    void unknownNameListsTheKnownOnes() {
        assertThatThrownBy(() -> KvConnectors.find(
                        KvTransferConfig.builder("NoSuch", KvRole.BOTH).build()))
                .isInstanceOf(ConfigException.class)
                .hasMessage("kv_connector: Unsupported connector type: NoSuch; known: [];"
                        + " a class of your own needs kv_connector_module_path, its package or its jar");
    }

    @Test
    void findsAClassByItsPath() {
        assertThat(find("KvConnectorsTest$OfMyOwn").orElseThrow().names()).containsExactly("OfMyOwn");
    }

    @Test
    void saysWhyAClassCannotBeUsed() {
        String prefix = "kv_connector: ";
        String name = KvConnectorsTest.class.getName();
        assertError("Nowhere", prefix + "Class Nowhere not found in baton.kv.connector");
        assertError(
                "KvConnectorsTest$NoConnector",
                prefix + "class " + name + "$NoConnector does not implement baton.kv.connector.KvConnector");
        assertError(
                "KvConnectorsTest$NoConstructor",
                prefix + "class " + name + "$NoConstructor needs a public constructor without parameters");
        assertError(
                "KvConnectorsTest$Throwing",
                prefix + "the constructor of " + name + "$Throwing failed: java.lang.IllegalStateException: no");
        assertError(
                "KvConnectorsTest$Broken",
                prefix + "class " + name
                        + "$Broken does not load: java.lang.NumberFormatException: For input string: \"no number\"");
        assertThatThrownBy(() -> KvTransferConfig.builder("X", KvRole.BOTH)
                        .modulePath(" ")
                        .build())
                .isInstanceOf(ConfigException.class)
                .hasMessage("kv_connector_module_path: kv_connector_module_path cannot be an empty string.");
    }

    private static void assertError(String name, String message) {
        assertThatThrownBy(() -> find(name)).isInstanceOf(ConfigException.class).hasMessage(message);
    }

    private static Optional<KvConnector> find(String name) {
        return KvConnectors.find(KvTransferConfig.builder(name, KvRole.BOTH)
                .modulePath(KvConnectorsTest.class.getPackageName())
                .build());
    }

    public static class OfMyOwn implements KvConnector {
        @Override
        public Set<String> names() {
            return Set.of("OfMyOwn");
        }

        @Override
        public SchedulerConnector scheduler(ConnectorContext context) {
            throw new UnsupportedOperationException();
        }

        @Override
        public WorkerConnector worker(ConnectorContext context, Rank rank) {
            throw new UnsupportedOperationException();
        }
    }

    public static final class NoConnector {}

    public static final class NoConstructor extends OfMyOwn {
        public NoConstructor(int anything) {
            assertThat(anything).isZero();
        }
    }

    public static final class Broken extends OfMyOwn {
        static final int NEVER_SET = Integer.parseInt("no number");
    }

    public static final class Throwing extends OfMyOwn {
        public Throwing() {
            throw new IllegalStateException("no");
        }
    }
}
