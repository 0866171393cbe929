package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Program.Ended;
import baton.cluster.LocalCluster;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code baton demo}, as a user runs it. */
class DemoTest {
    @TempDir
    private Path directory;

    @ParameterizedTest
    // Two ways to start a cluster: with the router last, and with instances that register with it.
    @EnumSource(names = {"SharedStorageConnector", "P2pNcclConnector"})
    void answersFromAHandedOverCache(LocalCluster.Connector connector) throws Exception {
        answersFromAHandedOverCache(connector, List.of());
    }

    @Test
    void answersFromValuesThatAreEncryptedInTheStore() throws Exception {
        Path key = Files.writeString(directory.resolve("key"), "a key of all instances");
        answersFromAHandedOverCache(
                LocalCluster.Connector.OffloadingConnector, List.of("--setting", "kv_store_key_file=" + key));
    }

    private void answersFromAHandedOverCache(LocalCluster.Connector connector, List<String> options) throws Exception {
        Path temporary = Files.createDirectory(directory.resolve("tmp"));
        List<String> arguments = new ArrayList<>(List.of("demo", "--connector", connector.name()));
        arguments.addAll(options);
        Ended demo = Program.run(List.of("-Djava.io.tmpdir=" + temporary), arguments);
        String said = demo.out();
        assertThat(demo.status()).as(said + demo.err()).isZero();
        assertThat(said).contains("Tobias").contains("One instance alone gives the same answer.");
        Matcher taken =
                Pattern.compile("took over (\\d+) tokens, computed (\\d+)").matcher(said);
        assertThat(taken.find()).as(said).isTrue();
        int handedOver = Integer.parseInt(taken.group(1));
        int computed = Integer.parseInt(taken.group(2));
        assertThat(handedOver).isGreaterThan(500);
        assertThat(computed).isBetween(0, 16);
        assertThat(said)
                .containsPattern("prompt, " + (handedOver + computed) + " tokens")
                .doesNotContainPattern(" 0\\.00 MiB (saved|loaded|read|written|sent|and)");
        assertThat(demo.err()).isEmpty();
        try (Stream<Path> left = Files.list(temporary)) {
            assertThat(left.map(Path::getFileName).map(Path::toString)).noneMatch(name -> name.startsWith("baton-"));
        }
    }
}
