package baton.router.upstream;

import baton.kv.Ticker;
import baton.messages.http.KeptConnections;
import io.vertx.core.Vertx;

/**
 * The state that the legs of one event loop share.
 *
 * @param http the event loop's own, so that a leg stays on its thread
 * @param ticker for deadlines
 */
public record UpstreamClient(Vertx vertx, KeptConnections http, Ticker ticker) {}
