package baton.router.role;

import baton.router.upstream.Instance;
import baton.router.upstream.Instances;
import io.vertx.core.Future;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpMethod;
import java.nio.charset.StandardCharsets;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Asks decode instances at intervals how full their KV caches are, and has streams move from the fullest to the emptiest, if the difference is large. A move is
 * for a part of the difference, so that neither a pool of another size nor a late effect turns it round. Confined to one event loop.
 */
public record StreamBalance(InstanceControl control, Instances instances) {
    private static final Logger log = LoggerFactory.getLogger(StreamBalance.class);

    /** The share of blocks in use from which on an instance gives streams away. */
    private static final double FULL = 0.5;
    /** The difference of two shares from which on streams move. */
    private static final double DIFFERENCE = 0.3;
    /** The part of the difference that moves. */
    private static final double PART = 0.25;
    /** The most streams of a move. */
    private static final int MOST = 16;

    private static final Pattern USE = Pattern.compile(
            "^vllm:kv_cache_usage_perc(?:\\{[^}\n]{0,1000}})? (\\d{1,9}(?:\\.\\d{1,30})?(?:[eE]-?\\d{1,3})?)$",
            Pattern.MULTILINE);
    private static final int MOST_METRICS = 4 << 20;

    /**
     * The use of an instance.
     *
     * @param share of its KV blocks, 0 to 1
     * @param streams that run there
     */
    record Use(Instance instance, double share, int streams) {}

    /** Streams that are to go from one instance to another. */
    record Move(Instance from, Instance to, int streams) {}

    /** Looks after each interval until the event loop ends. */
    public void start(long intervalMillis) {
        control.context().runOnContext(_ -> control.vertx().setTimer(intervalMillis, _ -> look(intervalMillis)));
    }

    private void look(long intervalMillis) {
        List<Future<Optional<Use>>> asked = instances.decodes().usable(List.of(), _ -> true).stream()
                .map(this::use)
                .toList();
        Future.all(asked).onComplete(_ -> {
            List<Use> uses =
                    asked.stream().flatMap(each -> each.result().stream()).toList();
            instances.decodes().all().forEach(Instance::keepStreams);
            move(uses).ifPresent(move -> {
                log.info("{} gives {} streams to {}: {}", move.from, move.streams, move.to, uses);
                move.from.giveStreams(move.to, move.streams);
            });
            start(intervalMillis);
        });
    }

    /** Empty if it does not tell. */
    private Future<Optional<Use>> use(Instance instance) {
        return control.ask(instance, HttpMethod.GET, "/metrics", Buffer.buffer(), MOST_METRICS)
                .map(answer -> USE.matcher(answer.body().toString(StandardCharsets.UTF_8))
                        .results()
                        .map(StreamBalance::share)
                        .max(Double::compare)
                        .map(share -> new Use(instance, share, instance.running())))
                .otherwise(Optional.empty());
    }

    private static double share(MatchResult sample) {
        return Double.parseDouble(sample.group(1));
    }

    static Optional<Move> move(List<Use> uses) {
        Comparator<Use> byShare = Comparator.comparingDouble(Use::share);
        Optional<Use> most = uses.stream().max(byShare);
        Optional<Use> least = uses.stream().min(byShare);
        if (most.isEmpty() || least.isEmpty()) {
            return Optional.empty();
        }
        Use from = most.get();
        double difference = from.share - least.get().share;
        // A move of the only stream would change nothing but its place.
        if (from.share < FULL || difference < DIFFERENCE || from.streams < 2) {
            return Optional.empty();
        }
        int streams = Math.clamp((long) (from.streams * difference * PART / from.share), 1, MOST);
        return Optional.of(new Move(from.instance, least.get().instance, streams));
    }
}
