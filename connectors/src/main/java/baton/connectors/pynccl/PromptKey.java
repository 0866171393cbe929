package baton.connectors.pynccl;

import baton.kv.ModelFingerprint;
import baton.kv.PromptRoot;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvRequest;
import java.nio.ByteBuffer;
import java.nio.IntBuffer;

/**
 * The lookup key of a prompt, instead of its tokens alone: a hash of 256 bits of the model, the LoRA adapter and the
 * {@code cache_salt}, the number of tokens, and the tokens. A lookup buffer matches keys of which one is a prefix of the other,
 * so with tokens alone a prompt would take the entry of its own prefix; with hash and length in front, only equal prompts that
 * may share KV match.
 */
final class PromptKey {
    /** Elements before the tokens. */
    static final int HEAD = 32 / Integer.BYTES + 1;

    private final ModelFingerprint model;

    PromptKey(ConnectorContext context) {
        model = context.model();
    }

    int[] of(KvRequest request) {
        int[] tokens = request.tokens(0, request.promptLength());
        int[] key = new int[HEAD + tokens.length];
        byte[] root = PromptRoot.of(model, request.loraId(), request.cacheSalt());
        IntBuffer hash = ByteBuffer.wrap(root).asIntBuffer();
        hash.get(key, 0, HEAD - 1);
        key[HEAD - 1] = tokens.length;
        System.arraycopy(tokens, 0, key, HEAD, tokens.length);
        return key;
    }
}
