package baton.connectors.onesided;

/** How the keys and values of a layer's share of a block lie. Baton's own are {@link #HEADS}. */
public enum BlockInterior {
    /** {@code [head][token][K | V]}: vLLM's LBHNC and BLHNC. */
    HEADS,
    /** {@code [token][head][K | V]}: vLLM's LBNHC. */
    TOKENS,
    /** {@code [head]}, in it keys {@code [dimension][token]}, then values {@code [token][dimension]}: vLLM's CPU_ATTN with {@code vec}. */
    CPU_VEC,
    /**
     * {@code [head]}, in it keys {@code [token / 16][dimension / 2][token % 16][dimension % 2]}, then values {@code [dimension / 16]
     * [token / 2][dimension % 16][token % 2]}: vLLM's CPU_ATTN with {@code amx}.
     */
    CPU_AMX,
    /** vLLM's CPU_ATTN, which packs a head's keys and values in a way that depends on its processor and that it does not tell. */
    CPU_UNKNOWN;

    /** Whether keys or values are spread over the tokens of a head's share of a block. */
    boolean isPacked() {
        return this == CPU_VEC || this == CPU_AMX || this == CPU_UNKNOWN;
    }

    /** Whether a head's keys and values are contiguous, apart from the other heads'. */
    boolean isByHead() {
        return this != TOKENS;
    }
}
