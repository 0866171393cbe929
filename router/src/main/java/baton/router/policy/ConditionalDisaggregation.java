package baton.router.policy;

import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.function.BiPredicate;
import java.util.function.Predicate;

/**
 * A prefill and a decode instance for each completion, each chosen by its role's {@link InstanceChooser}, unless the prefill leg does not pay:
 * then a decode instance computes the prompt.
 *
 * @param takesHandoff instances to which the flow can send the legs of a hand-off
 * @param pairs prefill and decode instances between which it can hand over
 * @param model if there are goals
 */
public record ConditionalDisaggregation(
        Instances instances,
        Predicate<Instance> takesHandoff,
        BiPredicate<Instance, Instance> pairs,
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
    public Placement place(RoutingRequest request) {
        if (isBelow(request, 0, local.belowBytes())) {
            return anyDecode(request)
                    .<Placement>map(decode -> new Placement.DecodeOnly(decode, LocalPrefillReason.SHORT))
                    .orElseGet(() -> new Placement.Unavailable(instances.decodes()));
        }
        List<Instance> usable = instances.prefills().usable(List.of(), takesHandoff);
        // Chosen before the prompt is computed, so that none is computed that no instance can decode.
        Optional<Choice> decode = choose(
                decodes,
                instances.decodes(),
                request,
                List.of(),
                each -> usable.stream().anyMatch(prefill -> pairs.test(prefill, each)));
        if (decode.isEmpty()) {
            Optional<Choice> alone = local.asFallback() ? anyDecode(request) : Optional.empty();
            return alone.<Placement>map(each -> new Placement.DecodeOnly(each, LocalPrefillReason.UNAVAILABLE))
                    .orElseGet(() ->
                            new Placement.Unavailable(usable.isEmpty() ? instances.prefills() : instances.decodes()));
        }
        List<Instance> fitting = fitting(usable, decode.get().instance());
        return without(request, fitting, decode.get())
                .<Placement>map(reason -> new Placement.DecodeOnly(decode.get(), reason))
                .orElseGet(() -> byGoals(request, prefills.choose(fitting, request), decode.get()));
    }

    /** While an instance changes its role it has both; it hands over to itself only if there is no other. */
    private List<Instance> fitting(List<Instance> usable, Instance decode) {
        List<Instance> all =
                usable.stream().filter(prefill -> pairs.test(prefill, decode)).toList();
        List<Instance> others = all.stream()
                .filter(prefill -> !prefill.url().equals(decode.url()))
                .toList();
        return others.isEmpty() ? all : others;
    }

    private Optional<Choice> anyDecode(RoutingRequest request) {
        return choose(decodes, instances.decodes(), request, List.of(), _ -> true);
    }

    private Placement byGoals(RoutingRequest request, Choice prefill, Choice decode) {
        Optional<Forecast> forecast = request.prefix().promptBytes() == 0
                ? Optional.empty()
                : model.map(learnt -> learnt.forecast(prefill, decode, request));
        if (forecast.isPresent() && forecast.get().local()) {
            return new Placement.DecodeOnly(decode, LocalPrefillReason.GOAL, forecast);
        }
        prefills.sent(prefill.instance(), request);
        return new Placement.Pair(prefill, decode, forecast);
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
        return choose(prefills, instances.prefills(), request, tried, prefill -> pairs.test(prefill, decode));
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
        return prefill.<Predicate<Instance>>map(from -> decode -> pairs.test(from, decode))
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
