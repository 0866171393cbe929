package baton.connectors.sglang;

import baton.connectors.onesided.LoadCheck;
import baton.connectors.onesided.Rejection;
import baton.connectors.onesided.TaskGroup;
import baton.connectors.sglang.SglangMetadata.Wish;
import baton.connectors.sglang.SglangPages.Place;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

/** Compares pages that have come with the checksum beside them, if they have one, and copies them into the pool. */
final class CopiedPages implements LoadCheck {
    private final TaskGroup tasks;
    private final boolean isVerified;
    /** Written by the only task. */
    private final Map<Integer, Rejection> wrong = new HashMap<>();

    CopiedPages(SglangRank local, Place place, Wish wish) {
        this.tasks = new TaskGroup(local.background());
        this.isVerified = local.pages().hasChecksum(place.row());
        tasks.run(() -> {
            if (isVerified && !local.pages().isIntact(place, wish.prompt())) {
                for (int block : wish.blocks()) {
                    wrong.put(block, Rejection.CORRUPT);
                }
            } else {
                local.pages().empty(place, wish.blocks());
            }
        });
    }

    @Override
    public boolean advance() {
        return tasks.isOver();
    }

    @Override
    public Optional<String> failure() {
        return tasks.failure().map(why -> "the pages could not be copied: " + why);
    }

    @Override
    public Map<Integer, Rejection> wrong() {
        return wrong;
    }

    @Override
    public boolean isVerified() {
        return isVerified;
    }

    @Override
    public void await() {
        tasks.await();
    }
}
