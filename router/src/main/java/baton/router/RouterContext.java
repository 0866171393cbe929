package baton.router;

import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.http.KeptConnections;
import baton.router.access.ClientGate;
import baton.router.body.BodyMemory;
import baton.router.cache.HeldBlocks;
import baton.router.cache.KvFeedCounts;
import baton.router.cache.KvFeeds;
import baton.router.flow.HandoffFlow;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.TokenizeResult;
import baton.router.policy.KvEventSettings;
import baton.router.policy.LatencyGoals;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import baton.router.policy.RoutingPolicy;
import baton.router.role.CacheHandover;
import baton.router.role.GoalCounts;
import baton.router.role.InstanceControl;
import baton.router.role.RoleController;
import baton.router.role.RoleSettings;
import baton.router.role.RoleSwitches;
import baton.router.role.StreamBalance;
import baton.router.trace.RequestTraces;
import baton.router.upstream.HealthProbe;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import baton.router.upstream.Membership;
import baton.router.upstream.OwnAddress;
import baton.trace.OtlpExporter;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.PoolOptions;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;

/** The state that the event loops of one router share, in parts. */
record RouterContext(
        RouterConfig config,
        Routing routing,
        InFlight inFlight,
        Reporting reporting,
        Guards guards,
        Membership membership,
        Roles roles) {

    /**
     * Changes of instances' roles, and their end.
     *
     * @param controller empty if only operators change roles
     * @param caches of instances that leave
     * @param balance empty if streams stay where they are
     */
    record Roles(
            InstanceControl control,
            RoleSwitches switches,
            Optional<RoleController> controller,
            CacheHandover caches,
            Optional<StreamBalance> balance) {}

    /**
     * The parts that choose instances for requests.
     *
     * @param probe health of the instances; to be closed
     * @param tokens of prompts; empty where no policy needs them
     */
    record Routing(
            HandoffFlow flow,
            RoutingPolicy policy,
            Instances instances,
            HealthProbe probe,
            Optional<PromptTokens> tokens) {}

    /**
     * Requests under way.
     *
     * @param running how many
     * @param bodies the memory of their bodies; a request releases its part when it ends
     */
    record InFlight(AtomicInteger running, BodyMemory bodies, BodyWorker worker) {}

    /**
     * Where requests are reported.
     *
     * @param metrics to be closed
     * @param spans takes the spans of ended requests
     * @param goals counts times of streams for the role controller
     * @param shadows requests that are computed twice
     * @param logged whether each request has a line in the log
     */
    record Reporting(
            RouterMetrics metrics,
            Ticker ticker,
            RequestTraces traces,
            Optional<OtlpExporter> spans,
            Optional<GoalCounts> goals,
            ShadowRequests shadows,
            boolean logged) {}

    /** @param gate lets requests with keys enter; empty if clients need none */
    record Guards(Optional<ClientGate> gate, RouterTls tls) {}

    /** Makes the parts that are not given.  */
    static RouterContext create(
            Vertx vertx,
            RouterConfig config,
            Instances instances,
            Ticker ticker,
            Guards guards,
            Optional<OtlpExporter> spans,
            boolean logged) {
        HandoffFlow flow = HandoffFlow.named(config.flow());
        AtomicInteger running = new AtomicInteger();
        RouterMetrics metrics = new RouterMetrics();
        metrics.watch(RouterMetric.REQUESTS_RUNNING, running::get);
        for (InstanceSet set : instances.sets()) {
            metrics.show(RouterMetric.RETRIES, set.role());
            metrics.watch(RouterMetric.INSTANCES_UP, set::up, set.role());
            metrics.watch(RouterMetric.INSTANCES, () -> set.all().size(), set.role());
            for (Instance.State state : Instance.State.values()) {
                metrics.watch(RouterMetric.INSTANCES_BY_STATE, () -> set.in(state), set.role(), state);
            }
        }
        spans.ifPresent(exporter -> {
            metrics.watch(RouterMetric.TRACE_SPANS, exporter::exported, "exported");
            metrics.watch(RouterMetric.TRACE_SPANS, exporter::dropped, "dropped");
        });
        RouterConfig.Limits limits = config.limits();
        HealthProbe probe = new HealthProbe(
                vertx,
                new HealthProbe.Settings(
                        limits.connect(),
                        limits.probeInterval(),
                        config.ownKey(),
                        flow::needsConnectorAddress,
                        guards.tls.client()),
                ticker,
                metrics);
        Optional<PromptTokens> tokens = config.policy().kvEvents().follow()
                ? Optional.of(tokens(vertx, config, instances, ticker, guards, metrics))
                : Optional.empty();
        Membership membership = new Membership(instances, probe, OwnAddress.of(config.host(), config.port()));
        RoleSettings settings = config.sources().roles();
        InstanceControl control =
                new InstanceControl(vertx, limits.connect(), config.ownKey(), guards.tls.client(), ticker);
        RoleSwitches switches = new RoleSwitches(control, settings, membership, metrics);
        Optional<GoalCounts> counts = Optional.of(config.policy().localPrefill().goals())
                .filter(_ -> settings.mode() != RoleSettings.Mode.OFF)
                .map(GoalCounts::new);
        HeldBlocks held = tokens.<HeldBlocks>map(PromptTokens::feeds).orElse(HeldBlocks.UNKNOWN);
        return new RouterContext(
                config,
                new Routing(flow, policy(config, settings).policy(instances, flow, held), instances, probe, tokens),
                new InFlight(running, new BodyMemory(limits.maxBodyBytes()), new BodyWorker(vertx)),
                new Reporting(
                        metrics,
                        ticker,
                        new RequestTraces(RequestTraces.KEPT, RequestTraces.BYTES, ticker),
                        spans,
                        counts,
                        new ShadowRequests(limits.shadowShare(), metrics),
                        logged),
                guards,
                membership,
                new Roles(
                        control,
                        switches,
                        counts.map(each -> new RoleController(
                                settings, config.policy().localPrefill().goals(), instances, switches, each, metrics)),
                        new CacheHandover(control, membership, flow, tokens.isEmpty(), metrics),
                        settings.balancesStreams()
                                ? Optional.of(new StreamBalance(control, instances))
                                : Optional.empty()));
    }

    /** Prompts that decode instances compute would delay their tokens, by which the role controller judges how many of these are needed. */
    private static PolicySettings policy(RouterConfig config, RoleSettings roles) {
        LocalPrefill local = config.policy().localPrefill();
        return roles.mode() == RoleSettings.Mode.ON
                ? config.policy().withLocalPrefill(local.withGoals(LatencyGoals.NONE))
                : config.policy();
    }

    private static PromptTokens tokens(
            Vertx vertx,
            RouterConfig config,
            Instances instances,
            Ticker ticker,
            Guards guards,
            RouterMetrics metrics) {
        RouterConfig.Limits limits = config.limits();
        KvEventSettings settings = config.policy().kvEvents();
        KvFeeds feeds = new KvFeeds(
                vertx,
                KeptConnections.open(
                        vertx,
                        new HttpClientOptions().setKeepAlive(false).setConnectTimeout((int)
                                limits.connect().toMillis()),
                        new PoolOptions(),
                        Optional.of(guards.tls.client())),
                ticker,
                instances,
                new KvFeeds.Settings(
                        limits.probeInterval(),
                        limits.connect(),
                        config.ownKey(),
                        settings.mostBlocks(),
                        settings.secret()
                                .map(file -> PeerAccess.encrypting("kv events secret file", file))
                                .orElseGet(PeerAccess::everyone)));
        KvFeedCounts counts = feeds.counts();
        metrics.watch(RouterMetric.KV_EVENT_PUBLISHERS, feeds::live);
        metrics.watch(RouterMetric.KV_EVENT_BLOCKS, feeds::blocks);
        metrics.watch(RouterMetric.KV_EVENT_BATCHES, counts.batches()::sum);
        metrics.watch(RouterMetric.KV_EVENT_REPLAYED_BATCHES, counts.replayed()::sum);
        metrics.watch(RouterMetric.KV_EVENT_LOSSES, counts.lost()::sum);
        metrics.watch(RouterMetric.KV_EVENT_MALFORMED_BATCHES, counts.malformed()::sum);
        for (TokenizeResult result : TokenizeResult.values()) {
            metrics.show(RouterMetric.PROMPT_TOKENS_KNOWN, result);
        }
        return new PromptTokens(feeds, settings.tokenize(), instances, metrics);
    }
}
