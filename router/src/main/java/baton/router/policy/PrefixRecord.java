package baton.router.policy;

import baton.router.upstream.Instance;
import com.google.errorprone.annotations.concurrent.GuardedBy;

/**
 * The prompts sent to each instance: the probable content of its prefix cache. An entry is a chunk of a prompt at an
 * instance. The entries used last are kept, at least half of the capacity: there are two generations; when the young one is full it
 * becomes the old one; the entries of that are forgotten. Any thread.
 */
public final class PrefixRecord {
    @GuardedBy("this")
    private LongSet young;

    @GuardedBy("this")
    private LongSet old;

    /** @param capacity entries at most; about 16 to 32 bytes of memory each */
    public PrefixRecord(int capacity) {
        young = new LongSet(Math.max(1, capacity / 2));
        old = new LongSet(Math.max(1, capacity / 2));
    }

    /** How many chunks from the front an instance probably has. */
    public synchronized int known(Instance instance, PromptPrefix prefix) {
        long[] chunks = prefix.chunks();
        long incarnation = instance.incarnation();
        int known = 0;
        while (known < chunks.length) {
            long entry = entry(incarnation, chunks[known]);
            if (!young.contains(entry) && !old.contains(entry)) {
                break;
            }
            known++;
        }
        return known;
    }

    /** A prompt is sent to an instance. */
    public synchronized void sent(Instance instance, PromptPrefix prefix) {
        long incarnation = instance.incarnation();
        for (long chunk : prefix.chunks()) {
            if (young.isFull()) {
                LongSet forgotten = old;
                old = young;
                young = forgotten;
                young.clear();
            }
            young.add(entry(incarnation, chunk));
        }
    }

    /** Entries in all; those of both generations count twice. */
    public synchronized int size() {
        return young.size() + old.size();
    }

    private static long entry(long incarnation, long chunk) {
        long entry = PromptPrefix.mix(chunk ^ incarnation);
        return entry == 0 ? 1 : entry;
    }
}
