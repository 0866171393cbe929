package baton.router.policy;

import baton.router.flow.HandoffFlow;
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
 * @param flow by which instances hand over
 * @param model if there are goals
 */
public record ConditionalDisaggregation(
        Instances instances,
        HandoffFlow flow,
        InstanceChooser prefills,
        InstanceChooser decodes,
        LocalPrefill local,
        Optional<GoalModel> model)
        implements RoutingPolicy {

    @Override
    public boolean needsPrefix() {
        return prefills.needsPrefix() || decodes.needsPrefix();
    }

    @Override
    public Placement place(RoutingRequest request, Collection<Instance> tried) {
        if (isBelow(request, 0, local.belowBytes())) {
            return otherDecode(request, tried, Optional.empty())
                    .<Placement>map(decode -> new Placement.DecodeOnly(decode, LocalPrefillReason.SHORT))
                    .orElseGet(() -> new Placement.Unavailable(instances.decodes()));
        }
        List<Instance> usable = instances.prefills().usable(List.of(), flow::takes);
        // Chosen before the prompt is computed, so that none is computed that no instance can decode.
        Optional<Choice> decode = choose(
                decodes,
                instances.decodes(),
                request,
                tried,
                each -> usable.stream().anyMatch(prefill -> flow.pairs(prefill, each)));
        if (decode.isEmpty()) {
            // An instance that has both roles, as it changes them, computes its prompts itself.
            Optional<Choice> alone = choose(
                    decodes,
                    instances.decodes(),
                    request,
                    tried,
                    each -> local.asFallback()
                            || usable.stream().anyMatch(prefill -> prefill.url().equals(each.url())));
            return alone.<Placement>map(each -> new Placement.DecodeOnly(each, LocalPrefillReason.UNAVAILABLE))
                    .orElseGet(() ->
                            new Placement.Unavailable(usable.isEmpty() ? instances.prefills() : instances.decodes()));
        }
        List<Instance> fitting = usable.stream()
                .filter(prefill -> flow.pairs(prefill, decode.get().instance()))
                .toList();
        return without(request, fitting, decode.get())
                .<Placement>map(reason -> new Placement.DecodeOnly(decode.get(), reason))
                .orElseGet(() -> byGoals(request, prefills.choose(fitting, request), decode.get()));
    }

    private Placement byGoals(RoutingRequest request, Choice prefill, Choice decode) {
        double share = share(request, prefill.instance(), decode.instance());
        Optional<Forecast> forecast = request.prefix().promptBytes() == 0
                ? Optional.empty()
                : model.map(learnt -> learnt.forecast(prefill, decode, request, share));
        if (forecast.isPresent() && forecast.get().local()) {
            return new Placement.DecodeOnly(decode, LocalPrefillReason.GOAL, forecast);
        }
        prefills.sent(prefill.instance(), request);
        return new Placement.Pair(prefill, decode, share, forecast);
    }

    private double share(RoutingRequest request, Instance prefill, Instance decode) {
        boolean splits = request.hasOnePrompt()
                && !local.split().isOff()
                && flow.ofPart(prefill, decode).isPresent();
        return splits
                ? local.split().share(request.prefix().promptBytes(), prefill.running(), decode.localPrefillBytes())
                : 1;
    }

    @Override
    public LatencyMeasurement measure(Forecast forecast, boolean isLocal, Instance decode) {
        return model.map(learnt -> learnt.measure(forecast, isLocal, decode)).orElse(LatencyMeasurement.NONE);
    }

    /** Whether a prompt has less behind the bytes that are known. */
    private static boolean isBelow(RoutingRequest request, int known, int bytes) {
        return request.prefix().promptBytes() > 0 && request.prefix().promptBytes() - known < bytes;
    }

    /** Why there is no prefill leg. */
    private Optional<LocalPrefillReason> without(RoutingRequest request, List<Instance> usable, Choice decode) {
        if (isBelow(request, decode.known(), local.uncachedBelowBytes())) {
            return Optional.of(LocalPrefillReason.CACHED);
        }
        if (usable.stream().allMatch(prefill -> prefill.running() >= local.prefillBusy())) {
            return Optional.of(LocalPrefillReason.BUSY);
        }
        return Optional.empty();
    }

    @Override
    public Optional<Choice> otherPrefill(RoutingRequest request, Collection<Instance> tried, Instance decode) {
        return choose(prefills, instances.prefills(), request, tried, prefill -> flow.pairs(prefill, decode));
    }

    @Override
    public Optional<Choice> otherDecode(
            RoutingRequest request, Collection<Instance> tried, Optional<Instance> prefill) {
        return choose(decodes, instances.decodes(), request, tried, fits(prefill));
    }

    @Override
    public boolean hasOtherDecode(Collection<Instance> tried, Optional<Instance> prefill) {
        return !instances.decodes().usable(tried, fits(prefill)).isEmpty();
    }

    private Predicate<Instance> fits(Optional<Instance> prefill) {
        return prefill.<Predicate<Instance>>map(from -> decode -> flow.pairs(from, decode))
                .orElse(_ -> true);
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
