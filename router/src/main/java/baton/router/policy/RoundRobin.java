package baton.router.policy;

import baton.router.body.JsonObjectText;
import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.upstream.Instance;
import baton.router.upstream.Instances;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.function.Predicate;

/**
 * The healthy instances of each role in turn. A short prompt, or one without a usable prefill instance, may be left to the decode
 * instance.
 *
 * @param takesHandoff instances to which the flow can send the legs of a hand-off
 * @param fallback whether a decode instance computes the prompt if no prefill instance is usable
 * @param localBelowBytes a decode instance computes prompts with fewer bytes of JSON
 */
public record RoundRobin(Instances instances, Predicate<Instance> takesHandoff, boolean fallback, int localBelowBytes)
        implements RoutingPolicy {

    @Override
    public Placement place(JsonObjectText body) {
        if (promptBytes(body) < localBelowBytes) {
            return instances
                    .decodes()
                    .next(List.of())
                    .<Placement>map(decode -> new Placement.DecodeOnly(decode, LocalPrefillReason.SHORT))
                    .orElseGet(() -> new Placement.Unavailable(instances.decodes()));
        }
        Optional<Instance> prefill = otherPrefill(List.of());
        // Chosen before the prompt is computed, so that none is computed that no instance can decode.
        Optional<Instance> decode = otherDecode(List.of(), true);
        if (prefill.isEmpty() && !(fallback && decode.isPresent())) {
            return new Placement.Unavailable(instances.prefills());
        }
        if (decode.isEmpty()) {
            return new Placement.Unavailable(instances.decodes());
        }
        return prefill.<Placement>map(chosen -> new Placement.Pair(chosen, decode.get()))
                .orElseGet(() -> new Placement.DecodeOnly(decode.get(), LocalPrefillReason.UNAVAILABLE));
    }

    @Override
    public Optional<Instance> otherPrefill(Collection<Instance> tried) {
        return instances.prefills().next(tried, takesHandoff);
    }

    @Override
    public Optional<Instance> otherDecode(Collection<Instance> tried, boolean handoff) {
        return handoff
                ? instances.decodes().next(tried, takesHandoff)
                : instances.decodes().next(tried);
    }

    private static int promptBytes(JsonObjectText body) {
        return body.valueBytes("prompt")
                .orElseGet(() -> body.valueBytes("messages").orElse(Integer.MAX_VALUE));
    }
}
