package baton.connectors.bykey;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.kv.Ticker;
import baton.messages.PeerSecret;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.sealed.SealedStore;
import java.util.Optional;
import java.util.function.Function;

/** The setting that has values encrypted before they leave host memory. */
public final class StoreKey {
    public static final String FILE = "kv_store_key_file";

    public static final Setting SETTING = Setting.absent(
            FILE,
            "none",
            "File with a secret of 16 bytes or more, the same for all instances of a store: values are encrypted before they leave"
                    + " host memory.");

    private StoreKey() {}

    /** @throws ConfigException if the file has no secret */
    public static Optional<PeerSecret> of(JsonFields extra) {
        return extra.path(FILE).map(file -> PeerSecret.read(extra.field(FILE), file));
    }

    /**
     * A store, with sealed values if there is a key.
     *
     * @param store of values of a format
     */
    public static StoreOpener.Closed seal(
            Optional<PeerSecret> key, StoreFormat format, Function<StoreFormat, StoreOpener.Closed> store) {
        return key.<StoreOpener.Closed>map(secret -> new Sealed(secret, format, store))
                .orElseGet(() -> store.apply(format));
    }

    private record Sealed(PeerSecret secret, StoreFormat format, Function<StoreFormat, StoreOpener.Closed> store)
            implements StoreOpener.Closed {
        @Override
        public BlockStore open(Ticker ticker) {
            return SealedStore.over(each -> store.apply(each).open(ticker), format, secret, ticker);
        }
    }
}
