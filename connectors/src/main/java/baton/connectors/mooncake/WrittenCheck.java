package baton.connectors.mooncake;

import baton.connectors.mooncake.XferReply.Written;
import baton.connectors.onesided.LoadCheck;
import baton.connectors.onesided.Rejection;
import baton.connectors.onesided.TaskGroup;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;

/** Compares blocks that prefill ranks have written with the checksums that they have sent. */
final class WrittenCheck implements LoadCheck {
    private final List<Written> parts;
    private final TaskGroup tasks;
    /** Written by the only task. */
    private final Map<Integer, Rejection> wrong = new LinkedHashMap<>();

    /** @param parts of the blocks; none if the prefill instance has no checksums */
    WrittenCheck(LocalRank local, List<MooncakeRegion> regions, int[] blocks, List<Written> parts) {
        this.parts = parts;
        this.tasks = new TaskGroup(local.background());
        if (!parts.isEmpty()) {
            tasks.run(() -> compare(local, regions, blocks));
        }
    }

    private void compare(LocalRank local, List<MooncakeRegion> regions, int[] blocks) {
        for (Written part : parts) {
            List<MooncakeRegion> covered =
                    IntStream.of(part.regions()).mapToObj(regions::get).toList();
            if (covered.isEmpty() || part.bytes() == 0) {
                continue;
            }
            int[] checksums = WritePlan.checksums(local.cache().memory(), covered, part.offset(), part.bytes(), blocks);
            for (int i = 0; i < checksums.length; i++) {
                if (checksums[i] != part.checksums()[i]) {
                    wrong.put(blocks[i], Rejection.CORRUPT);
                }
            }
        }
    }

    @Override
    public boolean advance() {
        return tasks.isOver();
    }

    @Override
    public Optional<String> failure() {
        return tasks.failure().map(why -> "the blocks could not be checked: " + why);
    }

    @Override
    public Map<Integer, Rejection> wrong() {
        return wrong;
    }

    @Override
    public boolean isVerified() {
        return !parts.isEmpty();
    }

    @Override
    public void await() {
        tasks.await();
    }
}
