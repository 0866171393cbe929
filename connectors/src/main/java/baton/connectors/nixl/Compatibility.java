package baton.connectors.nixl;

import baton.kv.KvGroups.Group;
import baton.kv.KvLayout;
import baton.kv.Sha256;
import baton.kv.connector.ConnectorContext;
import java.util.HexFormat;

/** The hash that two instances compare before they exchange blocks, vLLM's compatibility hash: equal hashes mean equal bytes. */
final class Compatibility {
    /** The version of the peers' messages. Goes up whenever their meaning changes. */
    private static final int VERSION = 1;

    private Compatibility() {}

    /** Parallel sizes may differ and are not part of it, nor is the block size where blocks have all layers. */
    static String hash(ConnectorContext context) {
        KvLayout model = context.modelLayout();
        String factors = "baton %d\nmodel=%s\ndtype=%s\nkv_heads=%d\nhead_dim=%d\nlayers=%d"
                .formatted(
                        VERSION,
                        context.model().digest(),
                        model.dtype().torchName(),
                        model.kvHeads(),
                        model.headDim(),
                        model.layers());
        if (context.groups().hasWindows()) {
            // Blocks of one group go into blocks of the same group and size.
            factors += "\nblock_size=%d\nwindows=%s"
                    .formatted(
                            model.blockSize(),
                            context.groups().groups().stream()
                                    .map(Group::window)
                                    .toList());
        }
        return HexFormat.of().formatHex(Sha256.of(factors));
    }
}
