package baton.engine.sim;

import baton.kv.JsonFields;
import baton.messages.SideChannel;
import baton.testkit.SimTransferAgent;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.Supplier;
import tools.jackson.databind.node.ObjectNode;

/**
 * One-sided connectors over simulated agents; half of the requests have both legs at once. Background work takes its time, and references
 * are changed, swapped and replayed.
 */
abstract class OneSidedSimConnectors extends FaultyConnectors {
    static final String TAMPERED = "reference changed";
    static final String HANDSHAKE_FAILS = "handshake fails";
    static final String HANDSHAKE_LATE = "handshake late";
    static final String BREAKS = "connection breaks";

    final SimTransferAgent.AgentNetwork agents;
    private final List<JsonFields> seen = new ArrayList<>();

    OneSidedSimConnectors(SimCluster.Site site) {
        super(site);
        this.agents = new SimTransferAgent.AgentNetwork(site.network(), site.ticker());
        faults.inSome(0.5, TAMPERED);
    }

    TaskRuntime runtime(SimNode node, Supplier<SideChannel> sideChannel) {
        return new TaskRuntime(
                node.ticker(),
                site.arena(),
                // Up to beyond the handshake's deadline.
                () -> random.nextLong(faults.happens(HANDSHAKE_LATE) ? 100 * MILLI : 3 * MILLI),
                () -> agents.open(node.name()),
                sideChannel);
    }

    /** Changes one thing in a reference; empty if another reference is to take its place. */
    abstract Optional<ObjectNode> tampered(ObjectNode reference);

    /** Adds the address of a prefill instance to a decode request's reference before that instance has answered. */
    abstract void address(ObjectNode reference, String prefill, boolean wrong);

    @Override
    public Optional<JsonFields> passOn(Optional<JsonFields> params) {
        params.ifPresent(seen::add);
        return params.isPresent() && faults.happens(TAMPERED)
                ? params.map(each -> tampered(each.toJson())
                        .map(changed -> JsonFields.of("kv_transfer_params", changed))
                        .orElseGet(() -> seen.get(random.nextInt(seen.size()))))
                : params;
    }

    @Override
    public Optional<JsonFields> atOnce(String prefill) {
        if (random.nextBoolean()) {
            return Optional.empty();
        }
        boolean changed = faults.happens(TAMPERED);
        ObjectNode json = JsonFields.empty("kv_transfer_params").toJson();
        json.put("do_remote_prefill", true).put("remote_engine_id", changed && random.nextBoolean() ? "p9" : prefill);
        address(json, prefill, changed && random.nextBoolean());
        return Optional.of(JsonFields.of("kv_transfer_params", json));
    }

    @Override
    public Map<String, Long> injected() {
        Map<String, Long> all = new TreeMap<>(faults.injected());
        all.putAll(agents.injected());
        return all;
    }

    @Override
    public Duration longestTransfer() {
        return Duration.ofSeconds(20);
    }

    /** A few steps: less than blocks are kept for a reader. */
    @Override
    public Optional<Duration> longestWithoutReader() {
        return Optional.of(Duration.ofMillis(50));
    }
}
