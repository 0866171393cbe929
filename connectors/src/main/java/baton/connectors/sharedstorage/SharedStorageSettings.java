package baton.connectors.sharedstorage;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.kv.connector.ConnectorContext;
import baton.store.prompt.SharedStorage;
import baton.store.prompt.TensorLayout;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * The connector's settings, see {@link SharedStorageConnector}.
 *
 * @param root directory of the entries
 * @param timeout the longest that a request waits for its load, or a step for a save
 * @param layouts of files that are read and written
 * @param storedBlockSize entries are written for as many blocks of so many tokens as a prompt fills
 */
record SharedStorageSettings(Path root, Duration timeout, SharedStorage.Layouts layouts, int storedBlockSize) {
    static final String PATH = "shared_storage_path";
    private static final String TIMEOUT = "shared_storage_timeout_seconds";
    private static final String FOREIGN_LAYOUT = "shared_storage_foreign_layout";
    private static final String FOREIGN_BLOCK_SIZE = "shared_storage_foreign_block_size";
    private static final String WRITE_LAYOUT = "shared_storage_write_layout";

    /** All of them. */
    static final List<Setting> SETTINGS = List.of(
            Setting.of(PATH, "/tmp", "Directory that both sides see; better one that only the instances can write to."),
            Setting.of(TIMEOUT, 60, "Seconds, the longest that a request waits for its load, or a step for its saves."),
            Setting.absent(
                    FOREIGN_LAYOUT,
                    "none: not used",
                    "How keys and values lie in files of vLLM: `gpu`, `cpu_attn_vec`, `cpu_attn_amx`, `cpu_attn_neon_bf16`."),
            Setting.of(WRITE_LAYOUT, "gpu", "Likewise in files that are written."),
            Setting.absent(
                    FOREIGN_BLOCK_SIZE,
                    "`--block-size`",
                    "The block size of the vLLM instances; entries are written in multiples of it."));

    static SharedStorageSettings of(ConnectorContext context) {
        JsonFields extra = context.config().extra().withDefaults(SETTINGS);
        int own = context.layout().blockSize();
        int stored = extra.integerAtLeast(FOREIGN_BLOCK_SIZE, 1).orElse(own);
        if (stored % own != 0) {
            throw new ConfigException(
                    extra.field(FOREIGN_BLOCK_SIZE),
                    "is " + stored + ", must be a multiple of this instance's --block-size, " + own);
        }
        return new SharedStorageSettings(
                root(context.config().extra()),
                extra.seconds(TIMEOUT, Double.MIN_VALUE, 86_400).orElseThrow(),
                new SharedStorage.Layouts(
                        layout(context, extra, FOREIGN_LAYOUT, stored),
                        layout(context, extra, WRITE_LAYOUT, stored).orElseThrow()),
                stored);
    }

    static Path root(JsonFields extra) {
        return SharedStorage.root(
                extra.field(PATH), extra.withDefaults(SETTINGS).string(PATH).orElseThrow());
    }

    private static Optional<TensorLayout> layout(
            ConnectorContext context, JsonFields extra, String setting, int blockSize) {
        String field = extra.field(setting);
        extra.string(setting)
                .filter(name -> context.modelLayout().latent()
                        && !name.equals(TensorLayout.GPU.interior().settingName()))
                .ifPresent(name -> {
                    throw new ConfigException(
                            field,
                            "is " + name + ", which has keys and values; this model caches latents, it must be gpu");
                });
        return extra.string(setting)
                .map(name -> TensorLayout.of(
                        field,
                        TensorLayout.Interior.parse(field, name),
                        blockSize,
                        context.modelLayout().headDim(),
                        context.modelLayout().dtype()));
    }
}
