package baton.router;

import baton.router.policy.PolicySettings;
import baton.router.role.RoleController;
import baton.router.trace.Explanation;
import baton.router.trace.RequestTrace;
import baton.router.trace.RequestTraces;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpServerRequest;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * The router's reports about itself: instances, requests with the reasons of their routing, and a page that shows all that. Answers have
 * ids, addresses and times, nothing of prompts and answers.
 *
 * @param running requests in flight
 */
record Observation(
        PolicySettings policy,
        RouterContext.Routing routing,
        RouterContext.Roles roles,
        AtomicInteger running,
        RequestTraces traces) {
    private static final String REQUESTS = "/v1/requests";
    private static final String EXPLAIN = "/explain";
    private static final String INSTANCES = "/v1/instances";
    private static final String JSON = "application/json";
    private static final int DEFAULT_LIMIT = 100;

    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    /** Scripts and styles from the router only. */
    private static final String POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
            + " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

    private record Page(String type, Buffer content) {}

    private static final Map<String, Page> PAGES = Map.of(
            "/ui", page("index.html", "text/html; charset=utf-8"),
            "/ui/", page("index.html", "text/html; charset=utf-8"),
            "/ui/ui.js", page("ui.js", "text/javascript; charset=utf-8"),
            "/ui/ui.css", page("ui.css", "text/css; charset=utf-8"));

    private static Page page(String name, String type) {
        try (InputStream in = Observation.class.getResourceAsStream("ui/" + name)) {
            if (in == null) {
                throw new IllegalStateException("ui/" + name + " is not in the jar");
            }
            return new Page(type, Buffer.buffer(in.readAllBytes()));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Whether a path is of these. */
    boolean serves(String path) {
        return PAGES.containsKey(path)
                || path.equals(INSTANCES)
                || path.equals(REQUESTS)
                || explained(path).isPresent();
    }

    /** The id in {@code /v1/requests/{id}/explain}. */
    private static Optional<String> explained(String path) {
        String before = REQUESTS + "/";
        return path.startsWith(before) && path.endsWith(EXPLAIN) && path.length() > before.length() + EXPLAIN.length()
                ? Optional.of(path.substring(before.length(), path.length() - EXPLAIN.length()))
                : Optional.empty();
    }

    /** Whether a path is of the page, in which there is nothing of any request. */
    boolean isPage(String path) {
        return PAGES.containsKey(path);
    }

    /** @param visible the requests that the answer may be about */
    void answer(HttpServerRequest request, Predicate<RequestTrace.Snapshot> visible) {
        String path = request.path();
        Page page = PAGES.get(path);
        if (page != null) {
            request.response()
                    .putHeader(HttpHeaders.CONTENT_TYPE, page.type)
                    .putHeader(HttpHeaders.CACHE_CONTROL, "no-cache")
                    .putHeader("Content-Security-Policy", POLICY)
                    .putHeader("X-Content-Type-Options", "nosniff")
                    .end(page.content);
        } else if (path.equals(INSTANCES)) {
            send(request, instances());
        } else if (path.equals(REQUESTS)) {
            requests(request, visible);
        } else {
            explain(request, explained(path).orElseThrow(), visible);
        }
    }

    private ObjectNode instances() {
        ObjectNode json = MAPPER.createObjectNode()
                .put("flow", routing.flow().name())
                .put("policy", policy.prefill())
                .put("decode_policy", policy.decode())
                .put("running", running.get());
        roles.controller()
                .flatMap(RoleController::last)
                .ifPresent(look -> json.putObject("role_controller")
                        .put("decision", look.decision())
                        .put("reason", look.reason())
                        .put("goodput", look.goodput()));
        ArrayNode all = json.putArray("instances");
        for (InstanceSet set : routing.instances().sets()) {
            for (Instance instance : set.all()) {
                ObjectNode each = all.addObject()
                        .put("role", set.role().label())
                        .put("url", instance.url())
                        .put("up", instance.isUp())
                        .put("state", instance.state())
                        .put("registered", instance.isRegistered())
                        .put("running", instance.running())
                        .put("requests", instance.begun())
                        .put("share", instance.share());
                instance.connector()
                        .ifPresent(known ->
                                each.put("connector", known.name()).put("engine", known.isBaton() ? "baton" : "vllm"));
                instance.downReason().ifPresent(reason -> each.put("down", reason));
                roles.switches()
                        .last(instance.url())
                        .ifPresent(change -> each.putObject("role_change")
                                .put("to", change.to().label())
                                .put("state", change.state().label())
                                .put("reason", change.reason()));
                roles.caches()
                        .progress(instance.url())
                        .filter(_ -> instance.isDraining())
                        .ifPresent(progress -> each.set("kept_cache", MAPPER.valueToTree(progress)));
                routing.tokens()
                        .ifPresent(tokens ->
                                tokens.feeds().blocks(instance).ifPresent(blocks -> each.put("kv_blocks", blocks)));
            }
        }
        return json;
    }

    private void requests(HttpServerRequest request, Predicate<RequestTrace.Snapshot> visible) {
        String given = request.getParam("limit");
        int limit = DEFAULT_LIMIT;
        if (given != null) {
            if (!given.matches("[0-9]{1,4}") || Integer.parseInt(given) > RequestTraces.KEPT) {
                ApiError.badRequest("limit", "limit is '" + given + "', must be 0 to " + RequestTraces.KEPT)
                        .send(request.response());
                return;
            }
            limit = Integer.parseInt(given);
        }
        ObjectNode json = MAPPER.createObjectNode();
        json.set("running", summaries(traces.running(limit, visible)));
        json.set("ended", summaries(traces.ended(limit, visible)));
        send(request, json);
    }

    private static ArrayNode summaries(List<RequestTrace.Snapshot> traces) {
        ArrayNode all = MAPPER.createArrayNode();
        traces.forEach(trace -> all.add(Explanation.summary(trace)));
        return all;
    }

    private void explain(HttpServerRequest request, String encoded, Predicate<RequestTrace.Snapshot> visible) {
        String id;
        try {
            id = URLDecoder.decode(encoded.replace("+", "%2B"), StandardCharsets.UTF_8);
        } catch (IllegalArgumentException e) {
            ApiError.badRequest("id", "'" + encoded + "' is not percent-encoded")
                    .send(request.response());
            return;
        }
        Optional<RequestTrace.Snapshot> found = traces.find(id, visible);
        if (found.isEmpty()) {
            ApiError.of(
                            404,
                            "NotFoundError",
                            "no request with X-Request-Id '" + id + "' is under way or among the last "
                                    + RequestTraces.KEPT)
                    .send(request.response());
            return;
        }
        RequestTrace.Snapshot trace = found.get();
        String accept = request.getHeader(HttpHeaders.ACCEPT);
        if (accept != null && accept.startsWith("text/plain")) {
            request.response()
                    .putHeader(HttpHeaders.CONTENT_TYPE, "text/plain; charset=utf-8")
                    .end(Explanation.text(trace) + "\n");
        } else {
            send(request, Explanation.json(trace));
        }
    }

    private static void send(HttpServerRequest request, ObjectNode json) {
        request.response()
                .putHeader(HttpHeaders.CONTENT_TYPE, JSON)
                .putHeader(HttpHeaders.CACHE_CONTROL, "no-store")
                .end(Buffer.buffer(MAPPER.writeValueAsBytes(json)));
    }
}
