package baton.engine.sim;

import baton.connectors.ConnectorRuntime;
import baton.connectors.nixl.NixlConnector;
import baton.connectors.nixl.NixlPushConnector;
import baton.kv.JsonFields;
import baton.kv.connector.KvConnector;
import baton.messages.MessageException;
import baton.testkit.MemorySideChannels;
import baton.testkit.SimTransferAgent;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.random.RandomGenerator;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The NIXL connectors over simulated agents and a simulated side channel with the real frames; half of the requests have both legs at
 * once. Faults beside the network's: handshakes fail, are late or are never answered, background work takes its time, references are
 * changed, swapped and replayed, and connections break, mostly one direction of a pair while the other one writes on.
 */
final class NixlSimConnectors implements SimNode.SimConnectors {
    private static final int PORT = 5600;
    private static final String NETWORK = "10.0.0.0/8";

    private final SimCluster.Site site;
    private final boolean both;
    private final RandomGenerator random;
    private final SimTransferAgent.AgentNetwork agents;
    private final MemorySideChannels sideChannels = new MemorySideChannels(this::beforeAnswer);
    private double handshakeFaults;
    private double tampering;
    private double breaks;
    private final Set<SimNode.Pair> broken = new LinkedHashSet<>();
    private final List<JsonFields> seen = new ArrayList<>();
    private final SimFaults faults;

    /** @param both whether some instances only write; else all do what each request says */
    NixlSimConnectors(SimCluster.Site site, boolean both) {
        this.site = site;
        this.both = both;
        this.random = site.random();
        this.faults = new SimFaults(random);
        this.agents = new SimTransferAgent.AgentNetwork(site.network(), site.ticker());
        this.handshakeFaults = random.nextInt(3) == 0 ? random.nextDouble() * 0.3 : 0;
        this.tampering = random.nextInt(3) == 0 ? random.nextDouble() * 0.5 : 0;
        this.breaks = random.nextInt(3) == 0 ? random.nextDouble() * 0.05 : 0;
        agents.disturbDigests(random, random.nextInt(3) == 0 ? random.nextDouble() * 0.3 : 0);
    }

    @Override
    public KvConnector connect(SimNode node) {
        ConnectorRuntime runtime = new TaskRuntime(
                node.ticker(),
                site.arena(),
                // Up to beyond the handshake's deadline.
                () -> random.nextLong(faults.happens("handshake late", handshakeFaults) ? 100_000_000 : 3_000_000),
                () -> agents.open(node.name()),
                () -> sideChannels.open(address(node.name())));
        return both && random.nextInt(3) > 0 ? new NixlPushConnector(runtime) : new NixlConnector(runtime);
    }

    @Override
    public Map<String, Object> settings(String instance) {
        return Map.of(
                "side_channel_host",
                address(instance),
                "kv_allow_unauthenticated",
                true,
                "allowed_peers",
                List.of(NETWORK),
                "side_channel_port",
                PORT,
                "kv_lease_duration",
                0.2,
                "transfer_timeout",
                0.15,
                "handshake_timeout",
                0.05,
                "push_registration_timeout",
                0.2,
                "engine_ttl",
                random.nextBoolean() ? 0.03 : 0);
    }

    @Override
    public Duration longestTransfer() {
        return Duration.ofSeconds(20);
    }

    /** Less than a lease: a few steps. */
    @Override
    public Optional<Duration> longestWithoutReader() {
        return Optional.of(Duration.ofMillis(50));
    }

    @Override
    public Optional<JsonFields> passOn(Optional<JsonFields> params) {
        params.ifPresent(seen::add);
        return params.isPresent() && faults.happens("reference changed", tampering)
                ? params.map(this::tampered)
                : params;
    }

    @Override
    public Optional<JsonFields> atOnce(String prefill) {
        if (random.nextBoolean()) {
            return Optional.empty();
        }
        boolean changed = faults.happens("reference changed", tampering);
        ObjectNode json = JsonFields.empty("kv_transfer_params").toJson();
        json.put("do_remote_prefill", true)
                .put("remote_engine_id", changed && random.nextBoolean() ? "p9" : prefill)
                .put("remote_host", address(prefill))
                .put("remote_port", changed && random.nextBoolean() ? 1 : PORT);
        return Optional.of(JsonFields.of("kv_transfer_params", json));
    }

    @Override
    public void poll(SimNode node) {
        if (random.nextDouble() < breaks) {
            agents.breakConnection(random).ifPresent(between -> {
                faults.count("connection breaks");
                String one = instance(between.getKey());
                String other = instance(between.getValue());
                if (one.charAt(0) != other.charAt(0)) {
                    broken.add(one.startsWith("p") ? new SimNode.Pair(one, other) : new SimNode.Pair(other, one));
                }
            });
        }
    }

    private static String instance(String agent) {
        return agent.substring(0, agent.indexOf('-'));
    }

    @Override
    public Set<SimNode.Pair> calm() {
        handshakeFaults = 0;
        tampering = 0;
        breaks = 0;
        agents.disturbDigests(random, 0);
        return broken;
    }

    @Override
    public Map<String, Long> injected() {
        Map<String, Long> all = new TreeMap<>(faults.injected());
        all.putAll(agents.injected());
        return all;
    }

    /** An instance's host: prefill instances are in one network, decode instances in another. */
    private static String address(String instance) {
        return "10.0." + (instance.startsWith("p") ? 1 : 2) + "." + instance.substring(1);
    }

    private void beforeAnswer(List<byte[]> question) throws MessageException {
        if (faults.happens("handshake fails", handshakeFaults)) {
            throw new MessageException("the network loses the question");
        }
    }

    private JsonFields tampered(JsonFields params) {
        ObjectNode json = params.toJson();
        ArrayNode blocks = (ArrayNode) json.get("remote_block_ids").get(0);
        ObjectNode proof = (ObjectNode) json.get("baton");
        switch (random.nextInt(8)) {
            case 0 -> blocks.set(random.nextInt(blocks.size()), json.numberNode(random.nextInt(20)));
            case 1 -> blocks.remove(random.nextInt(blocks.size()));
            case 2 -> {
                ArrayNode generations = (ArrayNode) proof.get("generations");
                generations.set(random.nextInt(generations.size()), json.numberNode(random.nextInt(20)));
            }
            case 3 -> json.remove("baton");
            case 4 -> proof.put("prompt", "00");
            case 5 -> json.put("remote_engine_id", "p" + random.nextInt(4));
            case 6 -> json.put("remote_port", 1 + random.nextInt(9));
            default -> {
                return seen.get(random.nextInt(seen.size()));
            }
        }
        return JsonFields.of("kv_transfer_params", json);
    }
}
