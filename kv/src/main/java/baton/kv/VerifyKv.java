package baton.kv;

import java.util.Arrays;
import java.util.stream.Collectors;

/** What of keys and values that a connector has loaded is compared with those that the model computes here. */
public enum VerifyKv {
    /**
     * {@link #FIRST_LAYER} of loads that came without digests of their sender; where roundings of layers add up, of the last token the first
     * two layers only.
     */
    AUTO("auto"),
    OFF("off"),
    /** All layers of the last loaded token, which is computed again. */
    LAST("last"),
    /** The first layer of all loaded tokens as well: it depends on a token and its position only. */
    FIRST_LAYER("first_layer"),
    /** All layers of the last loaded token and of the last token of each loaded block, which are computed again. */
    EACH_BLOCK("each_block"),
    /** All layers of all loaded tokens: the prompt is computed again. */
    FULL("full");

    private final String configName;

    VerifyKv(String configName) {
        this.configName = configName;
    }

    /** The value of {@code verify_kv}. */
    public String configName() {
        return configName;
    }

    /** @throws ConfigException if {@code name} is none of them */
    public static VerifyKv parse(String name) {
        return Arrays.stream(values())
                .filter(each -> each.configName.equals(name))
                .findFirst()
                .orElseThrow(() -> ConfigException.unsupported(
                        KvTransferConfig.VERIFY_KV,
                        name,
                        Arrays.stream(values()).map(VerifyKv::configName).collect(Collectors.joining(", "))));
    }
}
