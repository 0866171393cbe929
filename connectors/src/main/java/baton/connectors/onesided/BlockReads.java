package baton.connectors.onesided;

import baton.connectors.onesided.BlockMapping.Heads;
import baton.connectors.onesided.BlockMapping.Piece;
import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.kv.KvCache;
import baton.memory.RunDigests;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** Reads a load's blocks. Blocks that will be checked come in parts, so that one is digested while others come. */
final class BlockReads implements Arrival {
    /** A part is worth a transfer of its own. */
    private static final long LEAST_PART = 4L << 20;

    private final RankContext context;
    private final BlockMapping map;
    private final SourceBlocks source;
    private final KvCache cache;
    private final TransferAgent agent;
    private final PieceDigests digests;
    private final List<Part> parts;
    /** The parts that one rank has are started together and count as one transfer. */
    private final Map<Heads, TransferGroup> reads = new LinkedHashMap<>();

    private Optional<String> failure = Optional.empty();

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
     * Begins.
     *
     * @param map accepts the blocks of {@code source} ({@link BlockMapping#check})
     * @param maxParts in which they may come
     * @param timeout of the transfers
     * @throws TransferException if the blocks cannot be checked, in which case nothing was begun
     */
    BlockReads(RankContext context, BlockMapping map, SourceBlocks source, int maxParts, Duration timeout)
            throws TransferException {
        this.context = context;
        this.map = map;
        this.source = source;
        this.cache = context.cache();
        this.agent = context.agent();
        this.digests = new PieceDigests(context, map, source.digest());
        this.parts = parts(maxParts);
        if (source.isChecked()) {
            BlockCheck.prepare(context, map, source);
        }
        map.heads().forEach(heads -> reads.put(heads, new TransferGroup(context.ticker())));
        for (Part part : parts) {
            reads.forEach((heads, group) -> part.transfers.add(start(heads, group, part, timeout)));
        }
    }

    private List<Part> parts(int most) {
        List<Piece> pieces = map.pieces();
        long bytes = map.plan().blocks().length * cache.layout().blockBytes();
        int count = source.isChecked() ? Math.clamp(bytes / LEAST_PART, 1, most) : 1;
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

    private Transfer start(Heads heads, TransferGroup group, Part part, Duration timeout) {
        RemoteRank remote = source.ranks().get(heads.source());
        List<Piece> pieces = map.pieces().subList(part.from, part.to);
        if (source.isChecked() && digests.mayBeByAgent() && map.isWhole(heads)) {
            List<Range> ranges = map.wholes(heads, pieces, source.blocks());
            RunDigests digesting = digests.ofWholes(part.from, part.to);
            return group.start(
                    ranges.size(),
                    () -> agent.start(Operation.READ, remote.peer(), ranges, Optional.empty(), timeout, digesting));
        }
        List<Range> ranges =
                map.ranges(heads, pieces, source.blocks(), 0, cache.layout().layers());
        return group.start(
                ranges.size(), () -> agent.start(Operation.READ, remote.peer(), ranges, Optional.empty(), timeout));
    }

    @Override
    public boolean advance(Optional<String> stop, long now) {
        if (failure.isEmpty()) {
            stop.ifPresent(this::fail);
        }
        boolean over = true;
        for (TransferGroup each : reads.values()) {
            over &= each.isOver();
        }
        if (failure.isEmpty()) {
            reads.values().stream()
                    .flatMap(each -> each.failure().stream())
                    .findFirst()
                    .ifPresent(this::fail);
        }
        if (failure.isPresent()) {
            return over && digests.tasks().isOver();
        }
        if (source.isChecked()) {
            digestWhatIsHere();
        }
        if (over) {
            reads.values().forEach(each -> each.count(context.stats()));
        }
        return over;
    }

    private void fail(String why) {
        failure = Optional.of(why);
        reads.values().forEach(TransferGroup::cancel);
    }

    private void digestWhatIsHere() {
        for (Part part : parts) {
            if (!part.digested && part.isHere()) {
                part.digested = true;
                digests.digest(part.from, part.to);
            }
        }
    }

    @Override
    public Optional<String> failure() {
        return failure;
    }

    /** The digests of the blocks that are here. */
    PieceDigests digests() {
        return digests;
    }

    @Override
    public void await() {
        digests.tasks().await();
    }
}
