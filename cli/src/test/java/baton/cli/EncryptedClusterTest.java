package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Prompts;
import baton.cluster.ChildProcess;
import baton.cluster.ClusterConnector;
import baton.cluster.LocalCluster;
import java.net.InetAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Hand-overs between processes with {@code --kv-encryption required}, by each connector that can encrypt, behind a router. */
@Tag("thorough")
@Timeout(300)
class EncryptedClusterTest {
    /** The preamble of {@link baton.messages.SealedChannel}, which each side sends first. */
    private static final String PREAMBLE = "baton-sealed/";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @ParameterizedTest
    @EnumSource(
            names = {"NixlConnector", "NixlPushConnector", "P2pNcclConnector", "PyNcclConnector", "MooncakeConnector"})
    void answersFromAHandOverThatIsEncrypted(LocalCluster.Connector connector) throws Exception {
        List<String> options = List.of(ClusterConnector.SETTING + "transport", "tcp", "--kv-encryption", "required");
        Ledgers.Case question = Ledgers.named("recall-400");
        try (LocalCluster cluster = LocalCluster.start(
                        LocalCluster.Layout.of(Program.command()), Instances.MODEL, connector.with(options), 0, false);
                ApiClient client = new ApiClient()) {
            String body = Instances.greedy(question.prompt(), question.answer().length)
                    .toString();
            assertThat(INSTANCES.post(cluster.router(), "/v1/completions", body).tokenIds())
                    .isEqualTo(question.answer());
            Prompts prompts = Prompts.of(client.metrics(cluster.decode()));
            assertThat(prompts.transferred()).isGreaterThanOrEqualTo(question.aligned(16));
            Set<Integer> http = Stream.of(cluster.prefill(), cluster.decode())
                    .map(URI::getPort)
                    .collect(Collectors.toSet());
            int asked = 0;
            for (ChildProcess each : cluster.processes().members()) {
                for (int port : FrameFuzzTest.listening(each.pid())) {
                    if (!each.name().equals("router") && !http.contains(port)) {
                        assertThat(greeting(port))
                                .as("%s, port %d", each.name(), port)
                                .startsWith(PREAMBLE);
                        asked++;
                    }
                }
            }
            // The ports of PyNccl's pipes are closed when the two have met.
            if (connector != LocalCluster.Connector.PyNcclConnector) {
                assertThat(asked).as("ports of KV").isPositive();
            }
        }
    }

    /** The first bytes that a port sends to a stranger. */
    private static String greeting(int port) throws Exception {
        try (Socket stranger = new Socket(InetAddress.getLoopbackAddress(), port)) {
            stranger.setSoTimeout((int) Instances.DEADLINE.toMillis());
            return new String(stranger.getInputStream().readNBytes(PREAMBLE.length()), StandardCharsets.ISO_8859_1);
        }
    }
}
