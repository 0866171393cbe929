package baton.router.role;

import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.policy.LatencyGoals;
import baton.router.upstream.Instance;
import baton.router.upstream.Instances;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Looks at the times of streams at intervals, and has instances change their roles. Confined to one event loop, except {@link #last}. */
public final class RoleController {
    private static final Logger log = LoggerFactory.getLogger(RoleController.class);

    /**
     * The last look at a window.
     *
     * @param decision {@code stay}, {@code prefill} or {@code decode}: the role that an instance was to take
     * @param goodput the share of first tokens that kept the goal, times that of the gaps
     */
    public record Look(String decision, String reason, double goodput) {}

    private final RoleSettings settings;
    private final LatencyGoals goals;
    private final Instances instances;
    private final RoleSwitches switches;
    private final GoalCounts counts;
    private final RouterMetrics metrics;
    private RolePlan plan = RolePlan.START;
    /** Complete when no change that this controller began is under way. */
    private Future<?> changes = Future.succeededFuture();

    private volatile Optional<Look> last = Optional.empty();

    /** @param goals both are set */
    public RoleController(
            RoleSettings settings,
            LatencyGoals goals,
            Instances instances,
            RoleSwitches switches,
            GoalCounts counts,
            RouterMetrics metrics) {
        this.settings = settings;
        this.goals = goals;
        this.instances = instances;
        this.switches = switches;
        this.counts = counts;
        this.metrics = metrics;
    }

    /** Looks at each window until the event loop ends. */
    public void start(Vertx vertx) {
        vertx.getOrCreateContext()
                .runOnContext(_ -> vertx.setPeriodic(settings.window().toMillis(), _ -> look()));
    }

    /** The last look. Any thread. */
    public Optional<Look> last() {
        return last;
    }

    private void look() {
        int prefills =
                instances.prefills().all().stream().mapToInt(Instance::running).sum();
        Optional<StreamTimes> times = counts.look(prefills, settings.window());
        // Until then an instance counts in its former role, and one more would be chosen.
        if (changes.isComplete()) {
            times.ifPresent(this::judge);
        }
    }

    private void judge(StreamTimes times) {
        RolePlan.Decision decision = plan.next(
                times,
                instances.prefills().usable(List.of(), _ -> true).size(),
                instances.decodes().usable(List.of(), _ -> true).size(),
                goals);
        plan = decision.next();
        String label = decision.change().map(Instance.Role::label).orElse("stay");
        metrics.count(RouterMetric.ROLE_DECISIONS, label);
        last = Optional.of(new Look(label, decision.reason(), times.goodput()));
        decision.change().ifPresent(to -> change(to, decision.count(), decision.reason()));
    }

    private void change(Instance.Role to, int count, String reason) {
        List<Instance> chosen = instances.of(to.other()).usable(List.of(), each -> isAble(each, to)).stream()
                .sorted(Comparator.comparingInt(Instance::running))
                .limit(count)
                .toList();
        if (chosen.isEmpty()) {
            log.info("no {} instance can change its role: {}", to.other().label(), reason);
        }
        changes = Future.join(
                chosen.stream().map(each -> change(to, each, reason)).toList());
    }

    private Future<Boolean> change(Instance.Role to, Instance instance, String reason) {
        if (settings.mode() == RoleSettings.Mode.DRY_RUN) {
            log.info("dry run: {} would become a {} instance: {}", instance, to.label(), reason);
            return Future.succeededFuture(false);
        }
        return switches.change(to, instance.address(), reason)
                .onSuccess(_ -> {
                    if (to == Instance.Role.DECODE) {
                        instances.decodes().find(instance.url()).ifPresent(this::share);
                    }
                })
                .onFailure(failure -> log.warn("{} keeps its role: {}", instance, failure.getMessage()));
    }

    /** Gaps are too long, so the new decode instance gets its share of the streams that run. */
    private void share(Instance taker) {
        List<Instance> others = instances.decodes().usable(List.of(taker), _ -> true);
        int mean = others.stream().mapToInt(Instance::running).sum() / (others.size() + 1);
        others.stream()
                .filter(other -> other.running() > mean)
                .forEach(other -> other.giveStreams(taker, other.running() - mean));
    }

    /** Registered instances name their role themselves. One that failed in the role needs an operator. */
    private boolean isAble(Instance instance, Instance.Role to) {
        return !instance.isRegistered()
                && switches.last(instance.url())
                        .filter(change -> change.to() == to
                                && (change.state() == RoleChange.State.REFUSED
                                        || change.state() == RoleChange.State.ROLLED_BACK))
                        .isEmpty();
    }
}
