package baton.router.cache;

import baton.router.upstream.Instance;

/** The known content of the KV caches of instances. Any thread; must not block. */
public interface HeldBlocks {
    /** Nothing is known. */
    HeldBlocks UNKNOWN = (_, _) -> -1;

    /** The answer of {@link #known} for an instance of which nothing is known. */
    int NOT_KNOWN = -1;

    /** How many tokens from the front of a prompt an instance holds, or {@link #NOT_KNOWN}. */
    int known(Instance instance, TokenChain prompt);
}
