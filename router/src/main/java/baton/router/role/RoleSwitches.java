package baton.router.role;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.role.RoleChange.State;
import baton.router.upstream.Instance;
import baton.router.upstream.Membership;
import baton.router.upstream.Question;
import io.vertx.core.Future;
import io.vertx.core.Promise;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpMethod;
import java.net.URI;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.JsonNode;

/**
 * Changes the roles of instances while requests run. An instance that knows {@code /v1/pd_role} takes the role first, or refuses it. It leaves its former role
 * once it is up in the new one, and keeps its cache; streams of a former decode instance continue at others, where there are any. Its work in the new role proves the change: by the instance's own count where it has
 * one, else by answers of status 200. If requests were sent to it, and none is served in time, the change is taken back.
 * All state is confined to one event loop, except {@link #last}.
 */
public final class RoleSwitches {
    static final String PATH = "/v1/pd_role";

    private static final Logger log = LoggerFactory.getLogger(RoleSwitches.class);
    private static final int POLL_MILLIS = 20;
    private static final int PROOF_POLL_MILLIS = 100;
    private static final int MOST_ANSWER = 16 << 10;

    private final InstanceControl control;
    private final RoleSettings settings;
    private final Membership membership;
    private final RouterMetrics metrics;
    private final Map<String, RoleChange> changes = new ConcurrentHashMap<>();
    /** URLs of instances that do not have their new role yet. */
    private final Set<String> underWay = new HashSet<>();

    public RoleSwitches(InstanceControl control, RoleSettings settings, Membership membership, RouterMetrics metrics) {
        this.control = control;
        this.settings = settings;
        this.membership = membership;
        this.metrics = metrics;
    }

    /** The last change of the instance at that address; empty if its role was not changed. Any thread. */
    public Optional<RoleChange> last(String url) {
        return Optional.ofNullable(changes.get(url));
    }

    /**
     * Changes the role of an instance. Any thread.
     *
     * @param why in words
     * @return completes when the instance has the new role, which is not proven then; false if it has that role alone already. Fails with a
     *     {@link ConfigException} if the instance refuses the role, does not answer or does not come up in time
     */
    public Future<Boolean> change(Instance.Role to, URI address, String why) {
        Promise<Boolean> done = Promise.promise();
        control.context().runOnContext(_ -> begin(to, address, why).onComplete(done));
        return done.future();
    }

    private Future<Boolean> begin(Instance.Role to, URI address, String why) {
        Instance asked = new Instance(to, address);
        String url = asked.url();
        Instance.Role from = to.other();
        Optional<Instance> former = membership.find(from, url);
        if (former.isEmpty()) {
            return Future.succeededFuture(false);
        }
        if (!underWay.add(url)) {
            return Future.failedFuture(new ConfigException("url", "the role of '" + url + "' is being changed"));
        }
        return ask(asked, to)
                .compose(tells -> control.vertx()
                        .executeBlocking(() -> membership.add(to, address), false)
                        .compose(added -> awaitUp(to, url, control.nanos()).onFailure(_ -> {
                            added.ifPresent(_ -> membership.remove(to, url));
                            tellFormer(asked, from);
                        }))
                        .map(instance -> {
                            membership.moveFrom(from, url);
                            // Its streams leave it: prompts would delay their tokens.
                            former.get().drain(true);
                            log.info("{} was a {} instance: {}", instance, from.label(), why);
                            RoleChange pending = new RoleChange(to, State.PENDING, why);
                            record(url, pending);
                            watch(new Change(instance, former.get().address(), tells, pending));
                            return true;
                        }))
                .recover(failure -> {
                    String reason = String.valueOf(failure.getMessage());
                    end(url, new RoleChange(to, State.REFUSED, reason));
                    return Future.failedFuture(new ConfigException("role", reason));
                })
                .onComplete(_ -> underWay.remove(url));
    }

    /** Sets the role at the instance; whether the instance counts its work. */
    private Future<Boolean> ask(Instance instance, Instance.Role role) {
        return question(instance, HttpMethod.POST, Buffer.buffer("{\"role\":\"" + role.label() + "\"}"))
                .compose(answer -> switch (answer.status()) {
                    case 200 -> Future.succeededFuture(hasRole(answer, role));
                    // A server that has no roles.
                    case 404, 405, 501 -> Future.succeededFuture(false);
                    default ->
                        Future.failedFuture("POST " + PATH + " of " + instance.url() + " answers " + answer.status()
                                + ": " + answer.quoted());
                });
    }

    private Future<Question.Answer> question(Instance instance, HttpMethod method, Buffer body) {
        return control.ask(instance, method, PATH, body, MOST_ANSWER);
    }

    private static boolean hasRole(Question.Answer answer, Instance.Role role) {
        return fields(answer)
                .flatMap(fields -> fields.value("role"))
                .filter(value -> value.asString("").equals(role.label()))
                .isPresent();
    }

    /** Requests that the instance has served in a role, by its own count. */
    private static Optional<Long> work(Question.Answer answer, Instance.Role role) {
        return fields(answer)
                .flatMap(fields -> fields.value(role.label()))
                .map(work -> work.path("requests"))
                .filter(JsonNode::isIntegralNumber)
                .map(JsonNode::asLong);
    }

    private static Optional<JsonFields> fields(Question.Answer answer) {
        try {
            return Optional.of(JsonFields.parse("the answer", answer.body().toString()));
        } catch (ConfigException _) {
            return Optional.empty();
        }
    }

    private Future<Instance> awaitUp(Instance.Role role, String url, long since) {
        Promise<Instance> up = Promise.promise();
        // Not a future composed for each look: a thousand that complete one within the other overflow the stack.
        control.vertx().setPeriodic(POLL_MILLIS, poll -> {
            Optional<Instance> found = membership.find(role, url);
            if (found.filter(Instance::isUp).isPresent()) {
                up.complete(found.get());
            } else if (found.isEmpty() || isOver(since)) {
                up.fail(url + " is " + found.map(Instance::state).orElse("removed") + ", it does not come up as a "
                        + role.label() + " instance");
            }
            if (up.future().isComplete()) {
                control.vertx().cancelTimer(poll);
            }
        });
        return up.future();
    }

    private boolean isOver(long since) {
        return control.nanos() - since > settings.proof().toNanos();
    }

    /** A change that is not proven yet. */
    private static final class Change {
        private final Instance instance;
        private final URI address;
        private final boolean tells;
        private final RoleChange pending;
        private Optional<Long> firstSent = Optional.empty();

        /** @param tells whether the instance counts its work */
        Change(Instance instance, URI address, boolean tells, RoleChange pending) {
            this.instance = instance;
            this.address = address;
            this.tells = tells;
            this.pending = pending;
        }
    }

    /** Waits for the first request and, from then on, until the deadline for the first one that is served. */
    private void watch(Change change) {
        Instance instance = change.instance;
        String url = instance.url();
        if (membership.find(instance.role(), url).filter(instance::equals).isEmpty()) {
            changes.remove(url, change.pending);
            return;
        }
        if (change.firstSent.isEmpty() && instance.begun() > 0) {
            change.firstSent = Optional.of(control.nanos());
        }
        if (change.firstSent.isEmpty()) {
            control.vertx().setTimer(PROOF_POLL_MILLIS, _ -> watch(change));
            return;
        }
        served(change).onComplete(answer -> {
            long served = answer.succeeded() ? answer.result() : 0;
            if (served > 0) {
                end(url, new RoleChange(instance.role(), State.PROVEN, "it has served " + served + " requests in it"));
            } else if (isOver(change.firstSent.get())) {
                rollBack(change);
            } else {
                control.vertx().setTimer(PROOF_POLL_MILLIS, _ -> watch(change));
            }
        });
    }

    private Future<Long> served(Change change) {
        return change.tells
                ? question(change.instance, HttpMethod.GET, Buffer.buffer())
                        .map(answer -> work(answer, change.instance.role()).orElse(0L))
                : Future.succeededFuture(change.instance.served());
    }

    private void rollBack(Change change) {
        Instance.Role to = change.instance.role();
        String url = change.instance.url();
        String reason = change.instance.begun() + " requests were sent to it, and none was served within "
                + settings.proof().toMillis() + " ms";
        control.vertx()
                .executeBlocking(() -> membership.add(to.other(), change.address), false)
                .onComplete(_ -> {
                    membership.moveFrom(to, url);
                    change.instance.drain(true);
                    end(url, new RoleChange(to, State.ROLLED_BACK, reason));
                });
        tellFormer(change.instance, to.other());
    }

    private void tellFormer(Instance instance, Instance.Role former) {
        ask(instance, former)
                .onFailure(failure -> log.warn(
                        "{} was not notified that it has its former role: {}", instance, failure.getMessage()));
    }

    /** Instances that were removed since are forgotten. */
    private void record(String url, RoleChange change) {
        changes.put(url, change);
        changes.keySet().removeIf(each -> !membership.isKnown(each));
    }

    private void end(String url, RoleChange change) {
        record(url, change);
        metrics.count(RouterMetric.ROLE_CHANGES, change.to(), change.state());
        if (change.state() == State.PROVEN) {
            log.info("{} is a {} instance: {}", url, change.to().label(), change.reason());
        } else {
            log.warn("{} is no {} instance: {}", url, change.to().label(), change.reason());
        }
    }
}
