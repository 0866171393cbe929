package baton.connectors.pynccl;

import baton.connectors.BuiltInConnector;
import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.kv.FreePorts;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import java.io.IOException;
import java.util.Optional;
import java.util.Set;
import org.slf4j.event.Level;

/**
 * One producer and one consumer that connect at {@code kv_ip:kv_port}: {@code PyNcclConnector}, vLLM's first connector. The
 * producer inserts the keys, values and last hidden state of each prompt into a lookup buffer of {@code kv_buffer_size} bytes;
 * the consumer takes them out by the prompt and, if the entry is complete, does not run the model over the prompt at all.
 *
 * <p>The counterpart of a rank is the other side's rank of the same stage and number, so both sides need the same parallel sizes.
 */
public final class PyNcclConnector extends BuiltInConnector {
    private static final long WARM_UP_BYTES = 64L << 20;

    private final ConnectorRuntime runtime;
    private final Sessions sessions;

    /** Opens the sessions with the counterparts. */
    @FunctionalInterface
    public interface Sessions {
        LookupSession open(ConnectorContext context, Rank rank);
    }

    public PyNcclConnector() {
        this(new SystemRuntime());
    }

    public PyNcclConnector(ConnectorRuntime runtime) {
        this(runtime, Level.WARN);
    }

    /** @param atMost level at which connections with the counterpart and their ends are logged */
    private PyNcclConnector(ConnectorRuntime runtime, Level atMost) {
        this(runtime, (context, rank) -> overWires(runtime, context, rank, atMost));
    }

    /**
     * With other sessions than those over wires.
     *
     * @param runtime of the threads
     */
    public PyNcclConnector(ConnectorRuntime runtime, Sessions sessions) {
        super(Set.of("PyNcclConnector"), PyNcclSettings.SETTINGS, CacheSource.P2P);
        this.runtime = runtime;
        this.sessions = sessions;
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        PyNcclSettings settings = PyNcclSettings.of(config, ranks, runtime.ticker());
        for (int port = 0; settings.rank() == 0 && port < 2 * ranks; port++) {
            ListenAddress.require("kv_ip", settings.host(), "kv_port", settings.port() + port);
        }
    }

    /** NCCL sends tensors from the device's memory. */
    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return !config.buffersOnDevice()
                || !config.extra()
                        .withDefaults(PyNcclSettings.SETTINGS)
                        .string(PyNcclSettings.TRANSPORT)
                        .equals(Optional.of("nccl"));
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        context.requireKeysAndValues("PyNcclConnector");
        PyNcclSettings.of(context);
        return new PyNcclScheduler(context);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        LookupSession session = sessions.open(context, rank);
        return new PyNcclWorker(
                context,
                PyNcclSettings.of(context),
                session,
                runtime.threads(),
                rank.pipeline() == context.pipelineParallelSize() - 1);
    }

    private static LookupSession overWires(
            ConnectorRuntime runtime, ConnectorContext context, Rank rank, Level atMost) {
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
        return new PeerSession(
                settings,
                runtime.wires(
                        "kv_connector_extra_config." + PyNcclSettings.TRANSPORT,
                        settings.transport(),
                        settings.access()),
                settings.port(context, rank),
                fit,
                atMost,
                context.ticker());
    }

    /** A pair over TCP on the loopback interface. */
    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) throws IOException {
        int port = FreePorts.inARow(2);
        return Optional.of(new WarmUpPair(
                new PyNcclConnector(new SystemRuntime(), Level.DEBUG),
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
                .extra(PyNcclSettings.TRANSPORT, "tcp")
                .build();
    }
}
