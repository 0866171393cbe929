package baton.router;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.router.body.ReceivedBody;
import baton.router.role.CacheHandover;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceAddress;
import baton.router.upstream.Membership;
import io.vertx.core.Future;
import io.vertx.core.Promise;
import io.vertx.core.Timer;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpServerRequest;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Lets operators add, drain and remove instances: {@code POST /v1/instances/add|drain|resume|remove|role} with
 * {@code {"role": "prefill", "url": "http://host:port"}} and the admin key.
 *
 * @param adminKey empty if operators cannot change instances
 */
record Admin(Vertx vertx, Optional<String> adminKey, Membership membership, RouterContext.Roles roles) {
    private static final String PATH = "/v1/instances/";
    private static final int POLL_MILLIS = 50;
    /** The limit of {@code drain}'s wait. */
    private static final int MOST_WAIT_SECONDS = 3600;

    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    private enum Action {
        ADD,
        DRAIN,
        RESUME,
        REMOVE,
        /** The instance is to be of another role; see {@link baton.router.role.RoleSwitches}. */
        ROLE
    }

    private static final Map<String, Action> ACTIONS = Map.of(
            PATH + "add", Action.ADD,
            PATH + "drain", Action.DRAIN,
            PATH + "resume", Action.RESUME,
            PATH + "remove", Action.REMOVE,
            PATH + "role", Action.ROLE);

    static boolean serves(String path) {
        return ACTIONS.containsKey(path);
    }

    /** Why a request may not change instances; empty if it may. */
    Optional<ApiError> refusal(HttpServerRequest request) {
        if (adminKey.isEmpty()) {
            return Optional.of(ApiError.of(
                    403, "PermissionDeniedError", "the admin API is off: it needs a router with --admin-key"));
        }
        return hasKey(request)
                ? Optional.empty()
                : Optional.of(ApiError.of(
                        401, "AuthenticationError", "Authorization must be 'Bearer' and the router's admin key"));
    }

    /** Whether a request has the admin key. */
    boolean hasKey(HttpServerRequest request) {
        String given = request.getHeader(HttpHeaders.AUTHORIZATION);
        return adminKey.isPresent()
                && given != null
                && MessageDigest.isEqual(
                        ("Bearer " + adminKey.get()).getBytes(StandardCharsets.UTF_8),
                        given.getBytes(StandardCharsets.UTF_8));
    }

    /** Reads the body, and answers. Names are looked up beside the event loop. */
    Future<ObjectNode> run(String path, ReceivedBody body) {
        Action action = Objects.requireNonNull(ACTIONS.get(path));
        return vertx.executeBlocking(() -> run(action, body.join().toString()), false)
                .compose(answer -> answer);
    }

    private Future<ObjectNode> run(Action action, String body) {
        JsonFields fields = JsonFields.parse("body", body);
        Instance.Role role = role(fields);
        URI address = InstanceAddress.parse(
                "url",
                fields.string("url")
                        .orElseThrow(() -> new ConfigException("url", "is missing, must be http://host:port")));
        String url = new Instance(role, address).url();
        ObjectNode answer = MAPPER.createObjectNode().put("role", role.label()).put("url", url);
        return switch (action) {
            case ADD ->
                Future.succeededFuture(
                        answer.put("changed", membership.add(role, address).isPresent()));
            case REMOVE -> Future.succeededFuture(answer.put("changed", membership.remove(role, url)));
            case DRAIN, RESUME -> {
                Instance instance = membership.find(role, url).orElseThrow(() -> unknown(role, url));
                int wait = fields.integerAtLeast("wait", 0).orElse(0);
                if (wait > MOST_WAIT_SECONDS) {
                    throw ConfigException.unsupported("wait", wait, "0 to " + MOST_WAIT_SECONDS);
                }
                boolean drain = action == Action.DRAIN;
                boolean changed = instance.isDraining() != drain;
                instance.drain(drain);
                if (drain && fields.bool("keep_cache").orElse(false)) {
                    List<Instance> staying = membership.others(instance).stream()
                            .limit(CacheHandover.MOST_TAKERS)
                            .toList();
                    roles.caches().begin(instance, staying);
                    answer.put("takers", staying.size());
                }
                answer.put("changed", changed);
                yield drain && wait > 0
                        ? atRest(instance, answer, vertx.timer(wait, TimeUnit.SECONDS))
                        : Future.succeededFuture(answer.put("running", instance.running()));
            }
            case ROLE -> {
                if (membership.find(role.other(), url).isEmpty()
                        && membership.find(role, url).isEmpty()) {
                    throw unknown(role.other(), url);
                }
                yield roles.switches()
                        .change(role, address, "an operator asked for it")
                        .map(changed -> answer.put("changed", changed));
            }
        };
    }

    /**
     * When the instance serves no request of this router and its cache is handed over, or the time is over.
     *
     * @param end of the time
     */
    private Future<ObjectNode> atRest(Instance instance, ObjectNode answer, Timer end) {
        Promise<ObjectNode> rest = Promise.promise();
        vertx.setPeriodic(0, POLL_MILLIS, poll -> {
            Optional<CacheHandover.Progress> kept = roles.caches().progress(instance.url());
            boolean over = instance.running() == 0
                    && kept.map(CacheHandover.Progress::done).orElse(true);
            if (over || end.isComplete()) {
                vertx.cancelTimer(poll);
                end.cancel();
                kept.ifPresent(progress -> answer.set("kept_cache", MAPPER.valueToTree(progress)));
                rest.complete(answer.put("running", instance.running()));
            }
        });
        return rest.future();
    }

    private static ConfigException unknown(Instance.Role role, String url) {
        return new ConfigException("url", "'" + url + "' is no " + role.label() + " instance of this router");
    }

    private static Instance.Role role(JsonFields fields) {
        String given = fields.string("role").orElse("");
        for (Instance.Role role : Instance.Role.values()) {
            if (role.label().equals(given.toLowerCase(Locale.ROOT))) {
                return role;
            }
        }
        throw ConfigException.unsupported("role", given, "prefill, decode");
    }
}
