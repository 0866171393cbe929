package baton.cli;

import baton.engine.EngineListener;
import baton.kv.KvEvent;
import baton.kv.KvEventsConfig;
import baton.kv.Ticker;
import baton.messages.events.KvEventAccess;
import baton.messages.events.KvEventCodec;
import baton.messages.events.KvEventPublisher;
import baton.server.PrometheusMetrics;
import java.time.InstantSource;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Publishes the engine's KV events. */
record PublishedKvEvents(KvEventPublisher publisher) implements EngineListener, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(PublishedKvEvents.class);

    /**
     * Listens for subscribers, or connects to one; empty if events are not to be published.
     *
     * @param open whether other hosts may read events unauthenticated
     * @param allowed which hosts; empty for the default
     * @param secret file with which connections are sealed
     */
    static Optional<PublishedKvEvents> start(
            KvEventsConfig config,
            boolean prefixCaching,
            boolean open,
            Optional<List<String>> allowed,
            Optional<String> secret) {
        if (!config.publishes()) {
            if (!config.enabled() && config.publisher() != KvEventsConfig.Publisher.NULL) {
                LOG.warn("KV events have a publisher, but are not enabled: set enable_kv_cache_events to true");
            }
            return Optional.empty();
        }
        if (!prefixCaching) {
            LOG.warn("KV events are on, but prefix caching is off: the KV cache has none to publish");
        }
        Map<String, String> environment = System.getenv();
        return Optional.of(new PublishedKvEvents(KvEventPublisher.start(
                config,
                new KvEventCodec(KvEventCodec.Hashes.of(environment)),
                KvEventAccess.of(open, allowed, secret, environment, Ticker.system()),
                Ticker.system(),
                InstantSource.system())));
    }

    void addTo(PrometheusMetrics metrics) {
        metrics.addCounter("baton:kv_event_batches_published", "Batches of KV events published", publisher::published);
        metrics.addCounter(
                "baton:kv_event_batches_dropped",
                "Batches of KV events that no subscriber got as the queue was full",
                publisher::dropped);
        metrics.addCounter(
                "baton:kv_event_messages_lost",
                "Messages with KV events that a slow subscriber did not get, for each subscriber",
                publisher::lost);
        metrics.addCounter(
                "baton:kv_event_refused_peers",
                "Connections to the ports of KV events from hosts that are not allowed",
                publisher::refused);
        metrics.addGauge("baton:kv_event_subscribers", "Subscribers to KV events", publisher::subscribers);
    }

    /** Where they are published, by data-parallel rank: there is one. */
    Map<Integer, KvEventsConfig> sources() {
        return Map.of(0, publisher.source());
    }

    @Override
    public void onKvEvents(List<KvEvent> events) {
        publisher.publish(events);
    }

    @Override
    public void close() {
        publisher.close();
    }
}
