package baton.router.policy;

import baton.kv.Require;
import java.nio.file.Path;
import java.util.Optional;

/**
 * The settings of KV events for the policy {@code prefix}.
 *
 * @param follow whether events are followed
 * @param tokenize whether instances are asked for the tokens of prompts that are text
 * @param mostBlocks that are remembered, of all instances together
 * @param secret file of the instances' secret where their events are encrypted
 */
public record KvEventSettings(boolean follow, boolean tokenize, int mostBlocks, Optional<Path> secret) {
    /** 64 Mi tokens in blocks of 16, in at most 330 MB of memory. */
    public static final int DEFAULT_MOST_BLOCKS = 1 << 22;

    public static final KvEventSettings OFF = new KvEventSettings(false, true, DEFAULT_MOST_BLOCKS, Optional.empty());

    private static final int LEAST_BLOCKS = 1 << 10;

    /** @throws baton.kv.ConfigException if the number of blocks is too small */
    public KvEventSettings {
        Require.atLeast("kv events blocks", mostBlocks, LEAST_BLOCKS);
    }
}
