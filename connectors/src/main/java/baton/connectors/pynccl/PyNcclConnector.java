package baton.connectors.pynccl;

import baton.kv.FreePorts;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import baton.messages.PeerAccess;
import baton.pipe.WireTransport;
import baton.pipe.select.WireTransports;
import baton.pipe.tcp.TcpTransport;
import java.io.IOException;
import java.util.Optional;
import java.util.Set;
import org.slf4j.event.Level;

/**
 * One producer and one consumer that meet at {@code kv_ip:kv_port}: {@code PyNcclConnector}, vLLM's first connector. The producer puts
 * the keys, values and last hidden state of each prompt into a lookup buffer of {@code kv_buffer_size} bytes; the consumer takes them by the prompt
 * and, if all came, does not run the model over it at all.
 *
 * <p>Each rank has its counterpart in the rank of the other side with the same place, so both sides need the same parallel sizes.
 */
public final class PyNcclConnector implements KvConnector {
    private static final long WARM_UP_BYTES = 64L << 20;

    private final Transports transports;
    private final Level atMost;

    /** Makes the transport of a name. */
    @FunctionalInterface
    interface Transports {
        WireTransport open(String name, PeerAccess access);
    }

    public PyNcclConnector() {
        this((name, access) -> WireTransports.named(
                "kv_connector_extra_config." + PyNcclSettings.TRANSPORT, name, Optional.of(access)));
    }

    /** @param transports makes one by the setting's value */
    PyNcclConnector(Transports transports) {
        this(transports, Level.WARN);
    }

    /**
     * @param transports makes one by the setting's value
     * @param atMost level at which the comings and goings of the counterpart are logged
     */
    private PyNcclConnector(Transports transports, Level atMost) {
        this.transports = transports;
        this.atMost = atMost;
    }

    @Override
    public Set<String> names() {
        return Set.of("PyNcclConnector");
    }

    @Override
    public Optional<Set<String>> settingNames() {
        return Optional.of(PyNcclSettings.NAMES);
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        PyNcclSettings settings = PyNcclSettings.of(config, ranks);
        for (int port = 0; settings.rank() == 0 && port < 2 * ranks; port++) {
            ListenAddress.require("kv_ip", settings.host(), "kv_port", settings.port() + port);
        }
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        PyNcclSettings.of(context);
        return new PyNcclScheduler(context);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        PyNcclSettings settings = PyNcclSettings.of(context);
        KvLayout layout = context.layout();
        String fit = "rank=%d.%d tensor_parallel_size=%d pipeline_parallel_size=%d kv=%s[%d,tokens,%d,%d] model=%s"
                .formatted(
                        rank.pipeline(),
                        rank.tensor(),
                        context.tensorParallelSize(),
                        context.pipelineParallelSize(),
                        layout.dtype().torchName(),
                        layout.layers(),
                        layout.kvHeads(),
                        layout.headDim(),
                        context.model().digest());
        PeerSession link = new PeerSession(
                settings,
                transports.open(settings.transport(), settings.access()),
                settings.port(context, rank),
                fit,
                atMost);
        return new PyNcclWorker(settings, link, rank.pipeline() == context.pipelineParallelSize() - 1, context.wake());
    }

    /** Over TCP on the loopback interface. */
    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) throws IOException {
        int port = FreePorts.inARow(2);
        return Optional.of(new WarmUpPair(
                new PyNcclConnector((_, _) -> new TcpTransport(), Level.DEBUG),
                side(KvRole.PRODUCER, port),
                side(KvRole.CONSUMER, port),
                "warm-up-%d"::formatted,
                () -> {}));
    }

    private static KvTransferConfig side(KvRole role, int port) {
        return KvTransferConfig.builder("PyNcclConnector", role)
                .parallelSize(2)
                .port(port)
                .bufferSize(WARM_UP_BYTES)
                .build();
    }
}
