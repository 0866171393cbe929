package baton.connectors.onesided;

import baton.connectors.onesided.BlockMapping.Heads;
import baton.connectors.onesided.BlockMapping.Piece;
import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.Ticker;
import baton.memory.RunDigests;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;

/**
 * The transfers of one load: first the blocks, read or pushed; then the owner's checksums of them; then the comparison. A load from a
 * peer without checksums is over after the first. Checksums are computed by the agent while it moves the bytes, if it can, else in the
 * background as soon as a part of the blocks has come. A load is over only when none of its transfers can write any more and nothing
 * reads the pool.
 */
final class BlockLoad {
    /** A part is worth a transfer of its own. */
    private static final long LEAST_PART = 4L << 20;

    private static final int DIGESTS_AT_ONCE = 4;
    private static final int REARRANGED_AT_ONCE = 4;

    /** How it ended. */
    sealed interface Result {
        record Good() implements Result {}

        /** Some of the blocks do not have what was promised. */
        record Bad(Map<Integer, Rejection> blocks) implements Result {}

        record Failed(String message) implements Result {}
    }

    /**
     * The duration of a phase.
     *
     * @param phase {@code blocks}, {@code rearrange}, {@code seals} or {@code check}
     */
    record Span(String phase, Duration duration) {}

    private enum Phase {
        BLOCKS,
        /** The blocks have no checksums and are brought into Baton's order, if they are in another. */
        REARRANGED,
        CHECKSUMS,
        CHECK,
        /** No transfer is left, but checksums are being computed. */
        FAILED,
        OVER
    }

    private record Started(Heads heads, Transfer transfer, int ranges, Duration post) {}

    /** The pieces {@code [from, to)}: whole blocks of the reader's. */
    private static final class Part {
        private final int from;
        private final int to;
        private final List<Transfer> transfers = new ArrayList<>();
        private boolean digested;

        private Part(int from, int to) {
            this.from = from;
            this.to = to;
        }

        private boolean isHere() {
            return transfers.stream().allMatch(each -> each.state() instanceof Transfer.State.Done);
        }
    }

    /**
     * The owner's side of a load.
     *
     * @param blocks the owner's block table
     * @param generations of {@code blocks}, to be checked with the blocks' checksums; empty if the owner has none
     * @param ranks that have the heads
     */
    record Source(int[] blocks, Optional<long[]> generations, List<RemoteRank> ranks) {
        static Source of(RemoteBlocks reference, PeerEngine owner) {
            int pages = owner.ranks().getFirst().info().pagesPerBlock();
            int[] blocks = pages == 1
                    ? reference.blocks()
                    : Arrays.stream(reference.blocks())
                            .flatMap(block -> IntStream.range(0, pages)
                                    // Beyond all blocks, where an id of the reference is.
                                    .map(page -> (int) Math.min((long) block * pages + page, Integer.MAX_VALUE)))
                            .toArray();
            return new Source(blocks, reference.proof().map(SignedProof::generations), owner.ranks());
        }
    }

    private final RankContext context;
    private final BlockMapping map;
    private final Source source;
    private final KvCache cache;
    private final TransferAgent agent;
    private final Ticker ticker;
    private final List<Part> parts;
    private final List<Started> started = new ArrayList<>();
    /** By piece and head. */
    private final int[] digests;

    /** By piece; set by the thread that has digested it, before its transfer or its task is over. */
    private final boolean[] isDigested;

    /** The agent digests what it moves. */
    private volatile boolean agentDigests;

    private final List<CompletableFuture<Boolean>> digesting = new ArrayList<>();
    private final List<Span> spans = new ArrayList<>();
    private long phaseBegan;
    private Phase phase = Phase.BLOCKS;
    private String failure = "";
    private Optional<Result> result = Optional.empty();
    private boolean cancelled;
    /** Some digests were made before all blocks were here. */
    private boolean early;

    /**
     * Begins.
     *
     * @param map accepts the blocks of {@code source} ({@link BlockMapping#check})
     * @param arrived the blocks are here, and only to be checked, with the checksums that were computed on the way
     * @param maxParts in which they may come
     * @param timeout of the transfers
     */
    BlockLoad(
            RankContext context,
            BlockMapping map,
            Source source,
            Optional<ArrivalChecksums> arrived,
            int maxParts,
            Duration timeout)
            throws TransferException {
        this.context = context;
        this.map = map;
        this.source = source;
        this.cache = context.cache();
        this.agent = context.agent();
        this.ticker = context.ticker();
        this.phaseBegan = ticker.nanos();
        this.parts = parts(maxParts);
        this.digests =
                new int[isChecked() ? map.pieces().size() * cache.layout().kvHeads() : 0];
        this.isDigested = new boolean[map.pieces().size()];
        // Whatever may fail fails before the first transfer.
        if (isChecked()) {
            for (Heads heads : map.heads()) {
                source.ranks().get(heads.source()).needScratch(context, map.checksumEntries());
            }
        }
        early = arrived.isPresent() && isChecked();
        if (early) {
            takeOver(arrived.get());
        }
        if (arrived.isEmpty()) {
            int layers = cache.layout().layers();
            for (Part part : parts) {
                for (Heads heads : map.heads()) {
                    List<Piece> pieces = map.pieces().subList(part.from, part.to);
                    if (isChecked() && map.isWhole(heads)) {
                        int each = cache.layout().blockSize() / map.slots();
                        part.transfers.add(
                                startDigested(heads, map.wholes(heads, pieces, source.blocks()), timeout, part, each));
                    } else {
                        part.transfers.add(
                                start(heads, map.ranges(heads, pieces, source.blocks(), 0, layers), timeout));
                    }
                }
            }
        }
    }

    private void takeOver(ArrivalChecksums arrived) {
        int heads = cache.layout().kvHeads();
        for (int piece = 0; piece < isDigested.length; piece++) {
            isDigested[piece] = true;
            for (int head = 0; head < heads; head++) {
                OptionalInt digest = arrived.of(piece, head);
                isDigested[piece] &= digest.isPresent();
                digests[piece * heads + head] = digest.orElse(0);
            }
        }
    }

    private List<Part> parts(int most) {
        List<Piece> pieces = map.pieces();
        long bytes = map.plan().blocks().length * cache.layout().blockBytes();
        int count = isChecked() ? Math.clamp(bytes / LEAST_PART, 1, most) : 1;
        List<Part> cut = new ArrayList<>();
        int from = 0;
        for (int i = 1; i < pieces.size(); i++) {
            boolean nextBlock = pieces.get(i).block() != pieces.get(i - 1).block();
            if (nextBlock && i >= (long) pieces.size() * (cut.size() + 1) / count) {
                cut.add(new Part(from, i));
                from = i;
            }
        }
        cut.add(new Part(from, pieces.size()));
        return cut;
    }

    Optional<Result> result() {
        return result;
    }

    /** True if the agent has digested what it moved. */
    boolean wasDigestedByAgent() {
        return agentDigests;
    }

    /** Durations of its phases, when it is over. */
    List<Span> spans() {
        return spans;
    }

    void cancel() {
        cancelled = true;
        started.forEach(each -> each.transfer().cancel());
    }

    /** True if it has come further. */
    boolean advance(Duration timeout) {
        return switch (phase) {
            case BLOCKS -> {
                boolean more = isChecked() && digestWhatIsHere();
                if (!transfersAreOver()) {
                    yield more;
                }
                if (phase == Phase.BLOCKS) {
                    count();
                    if (!isChecked()) {
                        rearrange();
                        enter(Phase.REARRANGED);
                    } else if (cancelled) {
                        fail("cancelled");
                    } else {
                        // What came since the look above.
                        digestWhatIsHere();
                        enter(Phase.CHECKSUMS);
                        readChecksums(timeout);
                    }
                }
                yield true;
            }
            case REARRANGED -> {
                if (!digestsAreOver()) {
                    yield false;
                }
                Optional<Throwable> broken = broken();
                enter(Phase.OVER);
                result = Optional.of(
                        broken.isPresent()
                                ? new Result.Failed("the blocks could not be rearranged: "
                                        + broken.get().getMessage())
                                : new Result.Good());
                yield true;
            }
            case CHECKSUMS -> {
                if (!transfersAreOver()) {
                    yield false;
                }
                if (phase == Phase.CHECKSUMS) {
                    enter(Phase.CHECK);
                }
                yield true;
            }
            case CHECK -> {
                if (!digestsAreOver()) {
                    yield false;
                }
                Optional<Throwable> broken = broken();
                if (broken.isPresent()) {
                    fail("the blocks could not be checked: " + broken.get().getMessage());
                } else {
                    Map<Integer, Rejection> bad = compare();
                    if (early && !bad.isEmpty()) {
                        // Digests that were made on the way may be of what was there before: what counts is what is
                        // there now.
                        early = false;
                        Arrays.fill(isDigested, false);
                        parts.forEach(part -> part.digested = false);
                        digestWhatIsHere();
                        yield true;
                    }
                    enter(Phase.OVER);
                    result = Optional.of(bad.isEmpty() ? new Result.Good() : new Result.Bad(bad));
                }
                yield true;
            }
            case FAILED -> {
                if (!digestsAreOver()) {
                    yield false;
                }
                enter(Phase.OVER);
                result = Optional.of(new Result.Failed(failure));
                yield true;
            }
            case OVER -> false;
        };
    }

    /** Returns when nothing reads or writes the pool any more. The agent is closed. */
    void awaitCheck() {
        digesting.forEach(each -> each.handle((_, _) -> true).join());
    }

    /** Whether the owner has checksums of the blocks. */
    boolean isChecked() {
        return source.generations().isPresent();
    }

    private void enter(Phase next) {
        long now = ticker.nanos();
        switch (phase) {
            case BLOCKS -> spans.add(new Span("blocks", Duration.ofNanos(now - phaseBegan)));
            case CHECKSUMS -> spans.add(new Span("seals", Duration.ofNanos(now - phaseBegan)));
            case CHECK -> spans.add(new Span("check", Duration.ofNanos(now - phaseBegan)));
            case REARRANGED -> spans.add(new Span("rearrange", Duration.ofNanos(now - phaseBegan)));
            case FAILED, OVER -> {}
        }
        phaseBegan = now;
        phase = next;
    }

    private void fail(String message) {
        failure = message;
        enter(Phase.FAILED);
    }

    private Transfer start(Heads heads, List<Range> ranges, Duration timeout) {
        return begun(
                heads,
                ranges,
                () -> agent.start(
                        Operation.READ, source.ranks().get(heads.source()).peer(), ranges, Optional.empty(), timeout));
    }

    /** @param each pieces of a block, which is a range */
    private Transfer startDigested(Heads heads, List<Range> ranges, Duration timeout, Part part, int each) {
        KvLayout layout = cache.layout();
        RunDigests digests = new RunDigests(
                layout.layers(),
                layout.kvHeads() * each,
                Math.toIntExact(map.slots() * layout.entryBytes()),
                (block, crc32c) -> digested(part, block, each, crc32c));
        return begun(
                heads,
                ranges,
                () -> agent.start(
                        Operation.READ,
                        source.ranks().get(heads.source()).peer(),
                        ranges,
                        Optional.empty(),
                        timeout,
                        digests));
    }

    private Transfer begun(Heads heads, List<Range> ranges, Supplier<Transfer> start) {
        long before = ticker.nanos();
        Transfer transfer = start.get();
        started.add(new Started(heads, transfer, ranges.size(), Duration.ofNanos(ticker.nanos() - before)));
        return transfer;
    }

    /** @param crc32c of each head of a block, and in it of each of its pieces, of which the last may not be wanted */
    private void digested(Part part, int block, int each, int[] crc32c) {
        agentDigests = true;
        int first = part.from + block * each;
        int end = Math.min(first + each, part.to);
        int heads = cache.layout().kvHeads();
        for (int piece = first; piece < end; piece++) {
            for (int head = 0; head < heads; head++) {
                digests[piece * heads + head] = crc32c[head * each + piece - first];
            }
        }
        Arrays.fill(isDigested, first, end, true);
    }

    private void readChecksums(Duration timeout) {
        started.clear();
        for (Heads heads : map.heads()) {
            RemoteRank remote = source.ranks().get(heads.source());
            long local = remote.scratch().memory().region().memory().address();
            start(
                    heads,
                    map.checksumRanges(
                            heads,
                            source.blocks(),
                            local,
                            remote.info().checksums().orElseThrow()),
                    timeout);
        }
    }

    /** False while a transfer is under way. Of those that have failed the first fails the load. */
    private boolean transfersAreOver() {
        Optional<String> failed = Optional.empty();
        boolean underWay = false;
        for (Started each : started) {
            switch (each.transfer().state()) {
                case Transfer.State.UnderWay() -> underWay = true;
                case Transfer.State.Done _ -> {}
                case Transfer.State.Failed(Transfer.Cause cause, String message) ->
                    failed = failed.or(() -> Optional.of(cause + ": " + message));
            }
        }
        if (underWay) {
            if (failed.isPresent()) {
                started.forEach(each -> each.transfer().cancel());
            }
            return false;
        }
        failed.ifPresent(this::fail);
        return true;
    }

    /** The blocks are here. The parts of what one rank has were started together and count as one transfer. */
    private void count() {
        for (Heads heads : map.heads()) {
            long bytes = 0;
            int ranges = 0;
            Duration longest = Duration.ZERO;
            Duration post = Duration.ZERO;
            for (Started each : started) {
                if (each.heads().equals(heads)
                        && each.transfer().state() instanceof Transfer.State.Done(long moved, Duration elapsed)) {
                    bytes += moved;
                    ranges += each.ranges();
                    longest = elapsed.compareTo(longest) > 0 ? elapsed : longest;
                    post = post.plus(each.post());
                }
            }
            if (ranges > 0) {
                context.stats().transferred(longest, post, bytes, ranges);
            }
        }
    }

    /** True if there was something new. */
    private boolean digestWhatIsHere() {
        boolean more = false;
        for (Part part : parts) {
            if (!part.digested && !cancelled && part.isHere()) {
                part.digested = true;
                more = true;
                // Those that the agent has not digested.
                int first = part.from;
                while (first < part.to && isDigested[first]) {
                    first++;
                }
                int each = Math.max(1, Math.ceilDiv(part.to - first, DIGESTS_AT_ONCE));
                for (int from = first; from < part.to; from += each) {
                    digest(from, Math.min(from + each, part.to));
                }
            }
        }
        return more;
    }

    private void digest(int from, int to) {
        inBackground(() -> digestPieces(from, to));
    }

    private void rearrange() {
        for (Heads heads : map.heads()) {
            if (map.isRearranged(heads)) {
                int[] blocks = map.plan().blocks();
                int each = Math.max(1, Math.ceilDiv(blocks.length, REARRANGED_AT_ONCE));
                for (int from = 0; from < blocks.length; from += each) {
                    int[] some = Arrays.copyOfRange(blocks, from, Math.min(from + each, blocks.length));
                    inBackground(() -> rearrange(heads, some));
                }
            }
        }
    }

    private void rearrange(Heads heads, int[] blocks) {
        PageRearrangement order = new PageRearrangement(cache.layout(), map.ownerInterior(heads));
        for (int block : blocks) {
            for (int layer = 0; layer < cache.layout().layers(); layer++) {
                order.rearrange(cache.layer(block, layer), heads.readerHead(), heads.count());
            }
        }
    }

    private Optional<Throwable> broken() {
        return digesting.stream()
                .filter(CompletableFuture::isCompletedExceptionally)
                .map(CompletableFuture::exceptionNow)
                .findFirst();
    }

    private void inBackground(Runnable task) {
        digesting.add(context.background().run(() -> {
            task.run();
            return true;
        }));
    }

    /** The bytes of these pieces are here. */
    private void digestPieces(int from, int to) {
        CRC32C crc = new CRC32C();
        int heads = cache.layout().kvHeads();
        for (int i = from; i < to; i++) {
            Piece piece = map.pieces().get(i);
            for (int head = 0; head < heads; head++) {
                digests[i * heads + head] = BlockChecksums.checksum(
                        crc, cache.host(), cache.layout(), piece.block(), head, piece.slot(), map.slots());
            }
            isDigested[i] = true;
        }
    }

    private boolean digestsAreOver() {
        return digesting.stream().allMatch(CompletableFuture::isDone);
    }

    private Map<Integer, Rejection> compare() {
        Map<Integer, Rejection> bad = new LinkedHashMap<>();
        long[] promised = source.generations().orElseThrow();
        int ownHeads = cache.layout().kvHeads();
        for (Heads heads : map.heads()) {
            RemoteRank remote = source.ranks().get(heads.source());
            long entryBytes = BlockChecksums.entryBytes(remote.info().layout());
            MemorySegment entries = remote.scratch().memory().region().memory();
            for (int i = 0; i < map.pieces().size(); i++) {
                Piece piece = map.pieces().get(i);
                MemorySegment entry = entries.asSlice(map.checksumEntry(piece) * entryBytes, entryBytes);
                for (int head = 0; head < heads.count() && !bad.containsKey(piece.block()); head++) {
                    BlockChecksums.check(
                                    entry,
                                    remote.info().layout(),
                                    promised[piece.index()],
                                    heads.ownerHead() + head,
                                    piece.ownerSlot(),
                                    digests[i * ownHeads + heads.readerHead() + head])
                            .ifPresent(wrong -> bad.put(piece.block(), wrong));
                }
            }
        }
        return bad;
    }
}
