package baton.engine.sim;

import baton.kv.JsonFields;
import baton.kv.KvCache;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.testkit.SimNetwork.Range;
import baton.testkit.SimNetwork.Read;
import baton.testkit.SimNetwork.ReadState;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/*
 * The decode instance pulls.
 *
 *   A request that asks for it keeps its blocks after its end, as a lease. Its answer says where they are. Whoever has the answer
 *   sends ASK; the owner renews the lease and answers GRANT with a digest of each block, or GONE. A grant is good for LEASE from
 *   the moment its ASK was sent, so no clocks are compared. Within that time the reader reads; it compares the digests with what
 *   it got, block by block, and whatever differs it reports as invalid. DONE ends the reader's part. The owner frees the blocks
 *   when a reader is done and no other has a grant, or when all grants are over.
 *
 *   Every message names the life of the instance that it is for and ends with a checksum. Messages that are not for this life,
 *   broken, or about things unknown are dropped.
 */

/** Pull over one-sided reads, with leases; the simulation's stand-in for a peer-to-peer connector. */
final class PullConnector implements KvConnector {
    static final Duration LEASE = Duration.ofMillis(100);
    private static final long LEASE_NANOS = LEASE.toNanos();
    private static final long GIVE_UP_NANOS = LEASE_NANOS * 2;
    private static final long ASK_EVERY_NANOS = LEASE_NANOS / 5;

    private final SimNode place;

    PullConnector(SimNode place) {
        this.place = place;
    }

    /** {@code kv_transfer_params} of a request whose cache is to be kept for another instance. */
    static JsonFields keep() {
        return JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\":true}");
    }

    /** What a reader needs to know: the answer's {@code kv_transfer_params}. */
    private record Source(String engine, long epoch, String request, int tokens, int[] blocks) {
        JsonFields toJson() {
            return JsonFields.parse(
                    "kv_transfer_params",
                    "{\"do_remote_prefill\":true,\"engine\":\"%s\",\"epoch\":%d,\"request\":\"%s\",\"tokens\":%d,\"blocks\":\"%s\"}"
                            .formatted(
                                    engine,
                                    epoch,
                                    request,
                                    tokens,
                                    join(Arrays.stream(blocks).asLongStream())));
        }

        static Optional<Source> of(KvRequest request) {
            return request.kvTransferParams()
                    .filter(params -> params.bool("do_remote_prefill").orElse(false))
                    .map(params -> new Source(
                            params.string("engine").orElseThrow(),
                            params.integer("epoch").orElseThrow(),
                            params.string("request").orElseThrow(),
                            params.integerAtLeast("tokens", 1).orElseThrow(),
                            split(params.string("blocks").orElseThrow())
                                    .mapToInt(block -> (int) block)
                                    .toArray()));
        }
    }

    /** Blocks of a request to fill: {@code to[i]} from the source's {@code blocks[first + i]}. */
    private record Load(String request, Source source, int first, int[] to) {}

    private record Lease(String request, int[] blocks) {}

    private record Work(List<Load> loads, List<Lease> leases, List<Source> unused) implements ConnectorMetadata {}

    private static String join(LongStream numbers) {
        return numbers.mapToObj(Long::toString).collect(Collectors.joining(","));
    }

    private static LongStream split(String numbers) {
        return Arrays.stream(numbers.split(",")).mapToLong(Long::parseLong);
    }

    @Override
    public Set<String> names() {
        return Set.of("Pull");
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new Deciding(context.layout().blockSize());
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new Moving();
    }

    private final class Deciding implements SchedulerConnector {
        private final int blockSize;
        private List<Load> loads = new ArrayList<>();
        private List<Lease> leases = new ArrayList<>();
        private List<Source> unused = new ArrayList<>();
        /** Requests whose source is used up: each is read once at most. */
        private final Set<String> used = new HashSet<>();

        private Deciding(int blockSize) {
            this.blockSize = blockSize;
        }

        @Override
        public KvMatch match(KvRequest request, int computedTokens) {
            if (used.contains(request.id())) {
                return new KvMatch.None();
            }
            int more = Source.of(request)
                    .map(source -> Math.min(source.tokens(), request.promptLength()) - computedTokens)
                    .orElse(0);
            return more > 0 ? new KvMatch.Tokens(more, true) : new KvMatch.None();
        }

        @Override
        public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
            Optional<Source> source = Source.of(request);
            if (source.isPresent() && used.add(request.id())) {
                if (externalTokens == 0) {
                    unused.add(source.get());
                } else {
                    int first = computedTokens / blockSize;
                    int end = Math.ceilDiv(computedTokens + externalTokens, blockSize);
                    loads.add(new Load(request.id(), source.get(), first, Arrays.copyOfRange(blockTable, first, end)));
                }
            }
        }

        @Override
        public ConnectorMetadata buildMetadata(ScheduledStep step) {
            Work work = new Work(loads, leases, unused);
            loads = new ArrayList<>();
            leases = new ArrayList<>();
            unused = new ArrayList<>();
            return work;
        }

        @Override
        public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
            if (!used.remove(request.id())) {
                Source.of(request).ifPresent(unused::add);
            }
            boolean keep = end == RequestEnd.LENGTH
                    && request.kvTransferParams()
                            .flatMap(params -> params.bool("do_remote_decode"))
                            .orElse(false);
            if (!keep) {
                return Release.NOW;
            }
            // The last token was sampled, not computed.
            int tokens = request.length() - 1;
            int[] blocks = Arrays.copyOf(blockTable, Math.ceilDiv(tokens, blockSize));
            leases.add(new Lease(request.id(), blocks));
            return new Release(
                    true, Optional.of(new Source(place.name(), place.epoch(), request.id(), tokens, blocks).toJson()));
        }

        @Override
        public boolean hasPendingWork() {
            return !leases.isEmpty() || !unused.isEmpty();
        }

        @Override
        public void close() {}
    }

    /** Blocks that others may read. */
    private static final class Held {
        private final String digests;
        /** By reader, when its grant ends. */
        private final Map<String, Long> grants = new HashMap<>();

        private final long until;
        private boolean read;

        private Held(String digests, long until) {
            this.digests = digests;
            this.until = until;
        }

        private boolean isOver(long now) {
            grants.values().removeIf(end -> end <= now);
            return grants.isEmpty() && (read || until <= now);
        }
    }

    /** A load that is not over. */
    private static final class Pull {
        private final Load load;
        private final String reader;
        private final long giveUp;
        private final List<Long> asked = new ArrayList<>();
        private long[] digests = {};
        private boolean gone;
        private @Nullable Read read;

        private Pull(Load load, String reader, long giveUp) {
            this.load = load;
            this.reader = reader;
            this.giveUp = giveUp;
        }

        private boolean isOver(long now) {
            return read == null ? gone || now >= giveUp : read.state() != ReadState.UNDER_WAY;
        }
    }

    private final class Moving implements WorkerConnector {
        private @Nullable KvCache registered;
        private final Map<String, Held> held = new LinkedHashMap<>();
        private final Map<String, Pull> pulls = new LinkedHashMap<>();
        private int pullCount;

        private KvCache cache() {
            return Objects.requireNonNull(registered, "no cache");
        }

        @Override
        public void register(KvCache cache) {
            registered = cache;
        }

        @Override
        public void startLoad(ConnectorMetadata metadata) {
            Work work = (Work) metadata;
            long now = place.ticker().nanos();
            for (Lease lease : work.leases()) {
                LongStream digests = Arrays.stream(lease.blocks()).mapToLong(this::digest);
                held.put(lease.request(), new Held(join(digests), now + LEASE_NANOS));
            }
            for (Load load : work.loads()) {
                String reader = place.name() + "/" + place.epoch() + "/" + pullCount++;
                pulls.put(reader, new Pull(load, reader, now + GIVE_UP_NANOS));
            }
            for (Source source : work.unused()) {
                tell(source, "DONE", place.name() + "/" + place.epoch() + "/" + pullCount++, "");
            }
            work();
        }

        @Override
        public WorkerReport report(Set<String> finished) {
            work();
            long now = place.ticker().nanos();
            Set<String> sent = new LinkedHashSet<>();
            held.forEach((request, lease) -> {
                if (lease.isOver(now)) {
                    sent.add(request);
                }
            });
            held.keySet().removeAll(sent);
            Set<String> received = new LinkedHashSet<>();
            Set<Integer> invalid = new LinkedHashSet<>();
            for (Iterator<Pull> all = pulls.values().iterator(); all.hasNext(); ) {
                Pull pull = all.next();
                if (pull.isOver(now)) {
                    all.remove();
                    received.add(pull.load.request());
                    int[] to = pull.load.to();
                    for (int i = 0; i < to.length; i++) {
                        if (pull.digests.length == 0 || digest(to[i]) != pull.digests[i]) {
                            invalid.add(to[i]);
                        }
                    }
                    tell(pull.load.source(), "DONE", pull.reader, "");
                }
            }
            return new WorkerReport(sent, received, invalid, List.of());
        }

        private void work() {
            for (Optional<byte[]> message = place.endpoint().receive();
                    message.isPresent();
                    message = place.endpoint().receive()) {
                checked(message.get()).ifPresent(this::take);
            }
            long now = place.ticker().nanos();
            for (Pull pull : pulls.values()) {
                boolean due = pull.asked.isEmpty() || now - pull.asked.getLast() >= ASK_EVERY_NANOS;
                if (pull.read == null && due && now < pull.giveUp) {
                    tell(pull.load.source(), "ASK", pull.reader, "" + pull.asked.size());
                    pull.asked.add(now);
                }
            }
        }

        private void tell(Source owner, String what, String reader, String more) {
            send(owner.engine(), what, "" + owner.epoch(), owner.request(), reader, more);
        }

        private void take(String[] fields) {
            if (fields.length != 5 || Long.parseLong(fields[1]) != place.epoch()) {
                return;
            }
            String what = fields[0];
            long now = place.ticker().nanos();
            if (what.equals("ASK")) {
                Held lease = held.get(fields[2]);
                String reader = fields[3];
                String[] name = reader.split("/");
                if (lease == null || lease.isOver(now)) {
                    send(name[0], "GONE", name[1], reader, fields[4], "");
                } else {
                    lease.grants.put(reader, now + LEASE_NANOS);
                    send(name[0], "GRANT", name[1], reader, fields[4], lease.digests);
                }
            } else if (what.equals("DONE")) {
                Held lease = held.get(fields[2]);
                if (lease != null) {
                    lease.grants.remove(fields[3]);
                    lease.read = true;
                }
            } else {
                Pull pull = pulls.get(fields[2]);
                if (pull != null && pull.read == null && !pull.isOver(now)) {
                    if (what.equals("GONE")) {
                        pull.gone = true;
                    } else {
                        granted(pull, pull.asked.get(Integer.parseInt(fields[3])) + LEASE_NANOS, fields[4]);
                    }
                }
            }
        }

        private void granted(Pull pull, long until, String digests) {
            if (until - place.ticker().nanos() < LEASE_NANOS / 4) {
                return;
            }
            Load load = pull.load;
            pull.digests = split(digests).skip(load.first()).toArray();
            long size = cache().layout().blockBytes();
            List<Range> ranges = new ArrayList<>();
            for (int i = 0; i < load.to().length; i++) {
                ranges.add(new Range(load.to()[i] * size, load.source().blocks()[load.first() + i] * size, size));
            }
            pull.read = place.endpoint()
                    .read(load.source().engine(), load.source().epoch(), ranges, Math.min(until, pull.giveUp));
        }

        private long digest(int block) {
            CRC32C crc = new CRC32C();
            crc.update(cache().block(block).asByteBuffer());
            return crc.getValue();
        }

        private void send(String to, String... fields) {
            String text = String.join("|", fields);
            CRC32C crc = new CRC32C();
            crc.update(text.getBytes(StandardCharsets.UTF_8));
            place.endpoint().send(to, (crc.getValue() + "|" + text).getBytes(StandardCharsets.UTF_8));
        }

        /** The fields of a message, if it has come as it was sent. */
        private static Optional<String[]> checked(byte[] message) {
            String text = new String(message, StandardCharsets.UTF_8);
            int end = text.indexOf('|');
            CRC32C crc = new CRC32C();
            crc.update(text.substring(end + 1).getBytes(StandardCharsets.UTF_8));
            return end > 0 && text.substring(0, end).equals(Long.toString(crc.getValue()))
                    ? Optional.of(text.substring(end + 1).split("\\|", -1))
                    : Optional.empty();
        }

        @Override
        public void close() {}
    }
}
