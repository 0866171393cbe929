package baton.transfer.nixl;

import baton.transfer.nixl.NixlMetadata.Identity;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.security.SecureRandom;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Optional;

/**
 * Memory of an agent's own that it registers for probes: first its {@link Identity}, which peers' probes read, then slots to which
 * its own probes read. Belongs to the owner thread.
 */
final class NixlScratch implements AutoCloseable {
    /** The bytes that a probe reads: a word and a revision. */
    static final long PROBE_BYTES = 2 * Long.BYTES;
    /** Stands for the absence of a slot. */
    static final int NO_SLOT = 0;

    private static final long BYTES = 64 << 10;
    private static final long PAGE = 4096;

    private final NixlThread thread;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment memory = arena.allocate(BYTES, PAGE);
    private final Deque<Integer> slots = new ArrayDeque<>();
    private Identity identity = new Identity(0, 0, 0);

    NixlScratch(NixlThread thread) {
        this.thread = thread;
    }

    NixlMemory memory() {
        return new NixlMemory(NixlMemory.Kind.DRAM, memory.address(), memory.byteSize());
    }

    Identity identity() {
        return identity;
    }

    /** Begins anew, with another word and all slots free. */
    void renew() {
        memory.fill((byte) 0);
        identify(new Identity(memory.address(), new SecureRandom().nextLong() | 1, identity.revision()));
        slots.clear();
        for (int slot = NO_SLOT + 1; slot < BYTES / PROBE_BYTES; slot++) {
            slots.add(slot);
        }
    }

    /** Tells peers that memory was unregistered. */
    void revise() {
        identify(new Identity(identity.address(), identity.word(), identity.revision() + 1));
    }

    private void identify(Identity now) {
        thread.check();
        identity = now;
        memory.set(ValueLayout.JAVA_LONG, 0, now.word());
        memory.set(ValueLayout.JAVA_LONG, Long.BYTES, now.revision());
    }

    /** Tells peers that the agent is not there any more. */
    void hide() {
        thread.check();
        memory.set(ValueLayout.JAVA_LONG, 0, 0);
    }

    /** @return {@link #NO_SLOT} if all are in use */
    int takeSlot() {
        return Optional.ofNullable(slots.poll()).orElse(NO_SLOT);
    }

    void giveSlot(int slot) {
        slots.add(slot);
    }

    long address(int slot) {
        return memory.address() + slot * PROBE_BYTES;
    }

    /** The word that a probe has read. */
    long word(int slot) {
        return memory.get(ValueLayout.JAVA_LONG, slot * PROBE_BYTES);
    }

    /** The revision that a probe has read. */
    long revision(int slot) {
        return memory.get(ValueLayout.JAVA_LONG, slot * PROBE_BYTES + Long.BYTES);
    }

    @Override
    public void close() {
        arena.close();
    }
}
