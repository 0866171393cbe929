package baton.router.upstream;

import baton.kv.Ticker;
import io.vertx.core.Vertx;
import io.vertx.core.http.HttpClient;

/**
 * What the legs of one event loop share.
 *
 * @param http the event loop's own, so that a leg stays on its thread
 * @param ticker for deadlines
 */
public record UpstreamClient(Vertx vertx, HttpClient http, Ticker ticker) {}
