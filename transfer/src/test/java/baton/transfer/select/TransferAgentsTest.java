package baton.transfer.select;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import baton.transfer.mooncake.MooncakeAgent;
import baton.transfer.mooncake.MooncakeLibrary;
import baton.transfer.nixl.NixlAgent;
import baton.transfer.nixl.NixlExit;
import baton.transfer.nixl.NixlLibrary;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class TransferAgentsTest {
    private static final NixlLibrary NOWHERE = new NixlLibrary.Absent(List.of("looked nowhere"));

    @BeforeAll
    static void skipNixlsDestructors() {
        NixlExit.atShutdown();
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{}|true",
                "{}|false",
                "{\"transfer_agent\": \"embedded\"}|true",
                "{\"transfer_agent\": \"auto\"}|true",
                "{\"transport\": \"tcp\"}|true",
                "{\"transport\": \"auto\", \"transfer_agent\": \"embedded\"}|false"
            })
    void withoutNixlTheEmbeddedAgentIsTaken(String settings, boolean rdma) throws TransferException {
        try (TransferAgent agent = open(settings, NOWHERE, rdma)) {
            assertThat(agent).isInstanceOf(EmbeddedAgent.class);
            assertThat(agent.name()).startsWith("test");
        }
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "{'transfer_agent': 'nixl'}|extra.transfer_agent|looked nowhere",
                "{'backends': ['UCX']}|extra.backends|pip install nixl-cu12",
                "{'backends': ['UCX'], 'transfer_agent': 'auto'}|extra.backends|BATON_NIXL_LIBRARY",
                "{'backends': ['UCX'], 'transfer_agent': 'embedded'}|extra.transfer_agent|leave one out",
                "{'backends': 'UCX'}|extra.backends|array",
                "{'backends': []}|extra.backends|array",
                "{'backends': [7]}|extra.backends|array",
                "{'transfer_agent': 'mori'}|extra.transfer_agent|auto, embedded, nixl, mooncake",
                "{'metadata_server': 'P2PHANDSHAKE'}|extra.metadata_server|another agent than auto",
                "{'transfer_agent': 'nixl', 'protocol': 'tcp'}|extra.protocol|another agent than nixl",
                "{'transfer_agent': 'mooncake', 'backends': ['UCX']}|extra.backends|another agent than mooncake",
                "{'transfer_agent': 'mooncake', 'metadata_server': 'etcd://host'}|extra.metadata_server|P2PHANDSHAKE",
                "{'transfer_agent': 'mooncake', 'metadata_server': 'host:2379'}|extra.metadata_server|http://host:8080/metadata",
                "{'transfer_agent': 'mooncake', 'protocol': 'efa'}|extra.protocol|tcp, rdma",
                "{'transfer_agent': 'mooncake', 'device_name': 'mlx5_0'}|extra.device_name|the protocol is tcp",
                "{'transfer_agent': 'mooncake', 'mooncake_library': '/nowhere/x.so'}|extra.mooncake_library|/nowhere/x.so does not exist",
                "{'transport': 'rdma'}|extra.transport|auto, tcp",
                "{'transport': 'tcp', 'transfer_agent': 'nixl'}|extra.transport|leave one out",
                "{'transport': 'tcp', 'backends': ['UCX']}|extra.transport|backends asks for nixl",
                "{'num_threads': -1}|extra.num_threads|at least 0",
                "{'backend_params': {'POSIX': {}}}|extra.backend_params.POSIX|UCX"
            })
    void impossibleSettingsAreRefusedWithTheReason(String settings, String field, String reason) {
        assertThatThrownBy(() -> open(settings.replace('\'', '"'), NOWHERE, true))
                .isInstanceOfSatisfying(
                        ConfigException.class,
                        refused -> assertThat(refused.field()).isEqualTo(field))
                .hasMessageContaining(reason);
    }

    @Test
    void mooncakesTcpNeedsNoLibraryAndItsRdmaDoes() throws TransferException {
        JsonFields tcp = JsonFields.parse("extra", "{\"transfer_agent\": \"mooncake\", \"device_name\": \"\"}");
        try (TransferAgent agent =
                TransferAgents.open("test", tcp, EmbeddedAgent.Settings.at("127.0.0.1"), _ -> NOWHERE, true)) {
            assertThat(agent).isInstanceOf(MooncakeAgent.class);
            assertThat(agent.name()).startsWith("127.0.0.1:");
        }
        JsonFields rdma = JsonFields.parse("extra", "{\"protocol\": \"rdma\"}");
        assertThatThrownBy(() -> MooncakeSelection.open(
                        rdma, "127.0.0.1", Optional.empty(), _ -> new MooncakeLibrary.Absent("looked nowhere")))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("extra.protocol", "looked nowhere", "BATON_MOONCAKE_LIBRARY");
    }

    @Test
    void nixlIsTakenWhereItIsAskedForOrThereIsRdma() throws TransferException {
        NixlLibrary library = NixlLibrary.find(Optional.empty());
        assumeTrue(
                library instanceof NixlLibrary.Found,
                () -> library instanceof NixlLibrary.Absent absent ? absent.reason() : "");
        for (String settings : List.of(
                "{\"transfer_agent\": \"nixl\"}",
                "{\"backends\": [\"UCX\"], \"backend_params\": {\"UCX\": {\"engine_config\": \"TLS=tcp\"}}}",
                "{\"num_threads\": 2}")) {
            try (TransferAgent agent = open(settings, library, true)) {
                assertThat(agent).isInstanceOf(NixlAgent.class);
                assertThat(agent.name()).startsWith("test");
            }
        }
        try (TransferAgent agent = open("{}", library, false)) {
            assertThat(agent).as("over TCP the embedded one is better").isInstanceOf(EmbeddedAgent.class);
        }
        assertThatThrownBy(() -> open("{\"backends\": [\"NO_SUCH\"]}", library, true))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("extra.backends")
                .hasMessageContaining("UCX");
    }

    @Test
    void aMissingLibraryIsReportedWithThePlacesTried(@TempDir Path directory) throws IOException {
        Path text = Files.writeString(directory.resolve("libnixl_capi.so"), "no library");
        Path missing = directory.resolve("missing");
        assertThat(tried(NixlLibrary.find(Optional.of(missing), Optional.empty(), Map.of())))
                .singleElement()
                .asString()
                .contains(missing.toString(), "does not exist");
        assertThat(tried(NixlLibrary.find(Optional.empty(), Optional.of(missing.toString()), Map.of())))
                .singleElement()
                .asString()
                .contains(missing.toString());
        assertThat(tried(NixlLibrary.find(
                        Optional.empty(), Optional.empty(), Map.of(NixlLibrary.VARIABLE, directory.toString()))))
                .singleElement()
                .asString()
                .contains(text.toString(), "cannot be loaded");
        NixlLibrary besidePlugins = NixlLibrary.find(
                Optional.empty(),
                Optional.empty(),
                Map.of("NIXL_PLUGIN_DIR", directory.resolve("plugins").toString()));
        assumeTrue(
                besidePlugins instanceof NixlLibrary.Absent,
                "does not apply: a process that has the library already finds it by its name");
        assertThat(tried(besidePlugins))
                .anySatisfy(one -> assertThat(one).contains(text.toString(), "cannot be loaded"));
    }

    @Test
    void rdmaDevicesAreLookedFor(@TempDir Path directory) throws IOException {
        assertThat(TransferAgents.hasRdmaDevice(directory.resolve("missing"))).isFalse();
        assertThat(TransferAgents.hasRdmaDevice(directory)).isFalse();
        Files.createDirectory(directory.resolve("mlx5_0"));
        assertThat(TransferAgents.hasRdmaDevice(directory)).isTrue();
    }

    private static List<String> tried(NixlLibrary library) {
        assertThat(library).isInstanceOf(NixlLibrary.Absent.class);
        return ((NixlLibrary.Absent) library).tried();
    }

    private static TransferAgent open(String settings, NixlLibrary library, boolean rdma) throws TransferException {
        return TransferAgents.open(
                "test",
                JsonFields.parse("extra", settings),
                EmbeddedAgent.Settings.at("127.0.0.1"),
                _ -> library,
                rdma);
    }
}
