package baton.router.policy;

import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.function.Predicate;

/**
 * A prefill and a decode instance for each completion, each chosen by its role's {@link InstanceChooser}, unless the prefill leg does not pay:
 * then a decode instance computes the prompt.
 *
 * @param takesHandoff instances to which the flow can send the legs of a hand-off
 */
public record ConditionalDisaggregation(
        Instances instances,
        Predicate<Instance> takesHandoff,
        InstanceChooser prefills,
        InstanceChooser decodes,
        LocalPrefill local)
        implements RoutingPolicy {

    @Override
    public boolean needsPrefix() {
        return prefills.needsPrefix() || decodes.needsPrefix();
    }

    @Override
    public Placement place(RoutingRequest request) {
        if (isBelow(request, 0, local.belowBytes())) {
            return otherDecode(request, List.of(), false)
                    .<Placement>map(decode -> new Placement.DecodeOnly(decode, LocalPrefillReason.SHORT))
                    .orElseGet(() -> new Placement.Unavailable(instances.decodes()));
        }
        List<Instance> usable = instances.prefills().usable(List.of(), takesHandoff);
        // Chosen before the prompt is computed, so that none is computed that no instance can decode.
        Optional<Choice> decode = otherDecode(request, List.of(), true);
        if (usable.isEmpty() && !(local.asFallback() && decode.isPresent())) {
            return new Placement.Unavailable(instances.prefills());
        }
        if (decode.isEmpty()) {
            return new Placement.Unavailable(instances.decodes());
        }
        return without(request, usable, decode.get())
                .<Placement>map(reason -> new Placement.DecodeOnly(decode.get(), reason))
                .orElseGet(() -> new Placement.Pair(choose(prefills, usable, request), decode.get()));
    }

    /** Whether a prompt has less behind the chunks that are known. */
    private static boolean isBelow(RoutingRequest request, int known, int bytes) {
        return request.prefix().promptBytes() > 0 && request.prefix().bytesAfter(known) < bytes;
    }

    /** Why there is no prefill leg. */
    private Optional<LocalPrefillReason> without(RoutingRequest request, List<Instance> usable, Choice decode) {
        if (usable.isEmpty()) {
            return Optional.of(LocalPrefillReason.UNAVAILABLE);
        }
        if (isBelow(request, decode.known(), local.uncachedBelowBytes())) {
            return Optional.of(LocalPrefillReason.CACHED);
        }
        if (usable.stream().allMatch(prefill -> prefill.running() >= local.prefillBusy())) {
            return Optional.of(LocalPrefillReason.BUSY);
        }
        return Optional.empty();
    }

    @Override
    public Optional<Choice> otherPrefill(RoutingRequest request, Collection<Instance> tried) {
        return choose(prefills, instances.prefills(), request, tried, takesHandoff);
    }

    @Override
    public Optional<Choice> otherDecode(RoutingRequest request, Collection<Instance> tried, boolean handoff) {
        return choose(decodes, instances.decodes(), request, tried, fits(handoff));
    }

    @Override
    public boolean hasOtherDecode(Collection<Instance> tried, boolean handoff) {
        return !instances.decodes().usable(tried, fits(handoff)).isEmpty();
    }

    private Predicate<Instance> fits(boolean handoff) {
        return handoff ? takesHandoff : any -> true;
    }

    private static Optional<Choice> choose(
            InstanceChooser chooser,
            InstanceSet set,
            RoutingRequest request,
            Collection<Instance> tried,
            Predicate<Instance> fits) {
        List<Instance> usable = set.usable(tried, fits);
        return usable.isEmpty() ? Optional.empty() : Optional.of(choose(chooser, usable, request));
    }

    private static Choice choose(InstanceChooser chooser, List<Instance> usable, RoutingRequest request) {
        Choice choice = chooser.choose(usable, request);
        chooser.sent(choice.instance(), request);
        return choice;
    }
}
