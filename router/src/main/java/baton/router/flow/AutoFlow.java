package baton.router.flow;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceConnector;
import java.util.List;
import java.util.Optional;

/**
 * The flow of each pair of instances is that of their connectors, which the instances tell or the operator says. Two instances with connectors that do not
 * work together are never a pair.
 */
public record AutoFlow() implements HandoffFlow {
    public static final String NAME = "auto";

    private static final String NIXL = "NixlConnector";
    private static final String NIXL_PUSH = "NixlPushConnector";
    private static final String MOONCAKE = "MooncakeConnector";
    private static final String MULTI = "MultiConnector";
    private static final String SGLANG = "SglangConnector";
    private static final String SHARED_STORAGE = "SharedStorageConnector";
    /** The name of {@link #SHARED_STORAGE} in vLLM since 0.12. */
    private static final String EXAMPLE = "ExampleConnector";

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public boolean takes(Instance instance) {
        return instance.connector().filter(known -> !known.isNone()).isPresent();
    }

    @Override
    public boolean needsConnectorAddress(Instance instance) {
        return true;
    }

    @Override
    public String idWithoutHandoff(String requestId) {
        return new P2pFlow().idWithoutHandoff(requestId);
    }

    /** True, as the flow of some pairs does, and the pair is chosen later. */
    @Override
    public boolean handsOverOne() {
        return true;
    }

    @Override
    public boolean pairs(Instance prefill, Instance decode) {
        return HandoffFlow.super.pairs(prefill, decode) && of(prefill, decode).isPresent();
    }

    @Override
    public boolean fits(Instance instance, List<Instance> others) {
        return others.stream()
                .anyMatch(other ->
                        instance.role() == Instance.Role.PREFILL ? pairs(instance, other) : pairs(other, instance));
    }

    /** @throws ConfigException if the instances, of which one has changed since, work together no more */
    @Override
    public HandoffFlow flow(Instance prefill, Instance decode) {
        return of(prefill, decode)
                .orElseThrow(() -> new ConfigException(
                        "flow", "%s has %s and %s has %s".formatted(prefill, words(prefill), decode, words(decode))));
    }

    @Override
    public Optional<HandoffFlow> ofPart(Instance prefill, Instance decode) {
        return of(prefill, decode).flatMap(chosen -> chosen.ofPart(prefill, decode));
    }

    @Override
    public Handoff begin(JsonObjectText body, String requestId, Instance prefill, Instance decode) {
        return flow(prefill, decode).begin(body, requestId, prefill, decode);
    }

    @Override
    public String whyNot(Instance instance, List<Instance> others) {
        if (instance.connector().isEmpty()) {
            return "its connector is not known: it does not tell, so its URL must, as in http://host:port?connector=NixlConnector";
        }
        if (!takes(instance)) {
            return "it has no connector";
        }
        return "its " + words(instance) + " fits that of no "
                + (instance.role() == Instance.Role.PREFILL ? Instance.Role.DECODE : Instance.Role.PREFILL).label()
                + " instance: "
                + String.join(
                        ", ", others.stream().map(AutoFlow::words).distinct().toList());
    }

    private static String words(Instance instance) {
        return instance.connector().map(InstanceConnector::toString).orElse("unknown connector")
                + instance.settings().version().map(version -> " " + version).orElse("");
    }

    /** Empty if the two cannot hand over, or may not be able to. */
    static Optional<HandoffFlow> of(Instance prefill, Instance decode) {
        if (prefill.connector().isEmpty() || decode.connector().isEmpty()) {
            return Optional.empty();
        }
        InstanceConnector from = prefill.connector().get();
        InstanceConnector to = decode.connector().get();
        boolean baton = from.isBaton() && to.isBaton();
        boolean areOfTwoVersions = !from.isBaton()
                && !to.isBaton()
                && prefill.settings().version().isPresent()
                && decode.settings().version().isPresent()
                && !prefill.settings().version().equals(decode.settings().version());
        String name = from.name();
        if (isNixl(name) && isNixl(to.name())) {
            // Baton's have both directions. vLLM's NixlConnector only reads: as prefill it never writes, and as decode
            // it
            // breaks on a request that names no blocks. Its NixlPushConnector has another version of the protocol.
            return baton
                    ? Optional.of(new PushFlow())
                    : !name.equals(to.name()) || areOfTwoVersions
                            ? Optional.empty()
                            : Optional.of(name.equals(NIXL) ? new KvTransferParamsFlow() : new PushFlow());
        }
        if (from.isNone() || !family(name).equals(family(to.name()))) {
            return Optional.empty();
        }
        return switch (name) {
            case MOONCAKE -> Optional.of(new MooncakeFlow());
            case InstanceConnector.OF_REGISTERED ->
                prefill.kvAddress().isPresent() && decode.kvAddress().isPresent()
                        ? Optional.of(new P2pFlow())
                        : Optional.empty();
            case MULTI, SGLANG -> Optional.of(new KvTransferParamsFlow());
            // Finds blocks by content, in a store that both know.
            default -> Optional.of(new ContentKeyedFlow());
        };
    }

    private static boolean isNixl(String name) {
        return name.equals(NIXL) || name.equals(NIXL_PUSH);
    }

    private static String family(String name) {
        return name.equals(EXAMPLE) ? SHARED_STORAGE : name;
    }
}
