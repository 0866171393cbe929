package baton.kv;

import java.util.Locale;

/** The part of loaded keys and values that is compared with the model's own. */
public enum VerifyKv {
    /** {@link #FIRST_LAYER} of loads that came without digests of their sender. */
    AUTO(12),
    OFF(0),
    /** All layers of the last loaded token, which is computed again. */
    LAST(1),
    /** All layers of the last 12 loaded tokens, and the first layer of all: it depends on a token and its position only. */
    FIRST_LAYER(12),
    /** All layers of the last 12 loaded tokens and of the last token of each loaded block, which are computed again. */
    EACH_BLOCK(12),
    /** All layers of all loaded tokens: the prompt is computed again. */
    FULL(Integer.MAX_VALUE);

    private final int lastTokens;

    VerifyKv(int lastTokens) {
        this.lastTokens = lastTokens;
    }

    /** How many of the last loaded tokens are computed again, so that the blocks before them that they attend to show. */
    public int lastTokens() {
        return lastTokens;
    }

    /** The value of {@code verify_kv}. */
    public String configName() {
        return name().toLowerCase(Locale.ROOT);
    }

    /** Whether all loaded tokens are compared in the first layer, without computing them in others. */
    public boolean comparesFirstLayer() {
        return this == AUTO || this == FIRST_LAYER;
    }

    /** @throws ConfigException if {@code name} is none of them */
    public static VerifyKv parse(String name) {
        return ConfigException.choose(KvTransferConfig.VERIFY_KV, name, values(), VerifyKv::configName);
    }
}
