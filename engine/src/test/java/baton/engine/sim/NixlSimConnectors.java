package baton.engine.sim;

import baton.connectors.ConnectorRuntime;
import baton.connectors.nixl.NixlConnector;
import baton.connectors.nixl.NixlPushConnector;
import baton.kv.connector.KvConnector;
import baton.messages.MessageException;
import baton.testkit.MemorySideChannels;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The NIXL connectors over simulated agents and a simulated side channel with the real frames; half of the requests have both legs at
 * once. Faults beside the network's: handshakes fail, are late or are never answered, background work takes its time, references are
 * changed, swapped and replayed, and connections break, mostly one direction of a pair while the other one writes on.
 */
final class NixlSimConnectors extends OneSidedSimConnectors {
    private static final int PORT = 5600;
    private static final String NETWORK = "10.0.0.0/8";

    private final boolean both;
    private final MemorySideChannels sideChannels = new MemorySideChannels(this::beforeAnswer);
    private double breaks;
    private final Set<SimNode.Pair> broken = new LinkedHashSet<>();

    /** @param both whether some instances only write; else all follow each request */
    NixlSimConnectors(SimCluster.Site site, boolean both) {
        super(site);
        this.both = both;
        this.breaks = faults.odds(0.05);
        faults.inSome(0.3, HANDSHAKE_LATE, HANDSHAKE_FAILS);
        agents.disturbDigests(random, faults.odds(0.3));
    }

    @Override
    public KvConnector connect(SimNode node) {
        ConnectorRuntime runtime = runtime(node, () -> sideChannels.open(address(node.name())));
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
                "engine_ttl",
                random.nextBoolean() ? 0.03 : 0);
    }

    @Override
    public boolean isSymmetric() {
        return true;
    }

    @Override
    public boolean takesGroups() {
        return true;
    }

    @Override
    void address(ObjectNode reference, String prefill, boolean wrong) {
        reference.put("remote_host", address(prefill)).put("remote_port", wrong ? 1 : PORT);
    }

    @Override
    public void poll(SimNode node) {
        if (random.nextDouble() < breaks) {
            agents.breakConnection(random).ifPresent(between -> {
                faults.count(BREAKS);
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
        var _ = super.calm();
        breaks = 0;
        agents.disturbDigests(random, 0);
        return broken;
    }

    /** An instance's host: prefill instances are in one network, decode instances in another. */
    private static String address(String instance) {
        return "10.0." + (instance.startsWith("p") ? 1 : 2) + "." + instance.substring(1);
    }

    private void beforeAnswer(List<byte[]> question) throws MessageException {
        if (faults.happens(HANDSHAKE_FAILS)) {
            throw new MessageException("the network loses the question");
        }
    }

    @Override
    Optional<ObjectNode> tampered(ObjectNode json) {
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
                return Optional.empty();
            }
        }
        return Optional.of(json);
    }
}
