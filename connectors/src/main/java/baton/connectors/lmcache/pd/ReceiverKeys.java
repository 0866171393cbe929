package baton.connectors.lmcache.pd;

import baton.connectors.bykey.ChunkKeys;
import baton.kv.BlockHash;
import baton.kv.JsonFields;
import baton.kv.connector.KvRequest;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** A decode instance's blocks, and which hand-overs its requests wait for. On the scheduler's thread. */
public final class ReceiverKeys implements ChunkKeys {
    private final PdSettings settings;
    private final PdReceiver receiver;
    private final Map<String, String> expected = new HashMap<>();

    public ReceiverKeys(PdSettings settings, PdReceiver receiver) {
        this.settings = settings;
        this.receiver = receiver;
    }

    @Override
    public void begin(KvRequest request) {
        Optional<String> transfer = request.kvTransferParams().flatMap(params -> params.string(SenderKeys.TRANSFER));
        transfer.ifPresent(id -> {
            expected.put(request.id(), id);
            receiver.expect(request.id(), id, request.blockHashes());
        });
    }

    @Override
    public List<BlockHash> keys(KvRequest request, int from, int to) {
        return request.blockHashes().subList(from, to);
    }

    @Override
    public boolean stores(KvRequest request) {
        return false;
    }

    @Override
    public int leastLoad() {
        return settings.leastLoad();
    }

    @Override
    public Optional<JsonFields> forget(KvRequest request, RequestEnd end) {
        if (expected.remove(request.id()) != null) {
            receiver.forget(request.id());
        }
        return Optional.empty();
    }
}
