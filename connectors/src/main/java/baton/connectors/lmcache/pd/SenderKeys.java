package baton.connectors.lmcache.pd;

import baton.connectors.bykey.ChunkKeys;
import baton.kv.BlockHash;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.connector.KvRequest;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.messages.PeerAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import tools.jackson.databind.JsonNode;

/**
 * A prefill instance's blocks: each request's have keys of their own, so that each request's are offered to its receiver, which reports the
 * blocks that it has already. On the scheduler's thread.
 */
public final class SenderKeys implements ChunkKeys {
    /** LMCache's key in {@code kv_transfer_params} of a prefill request: {@code receiver_host}, {@code receiver_init_port}. */
    private static final String SPEC = "disagg_spec";

    /** The key in {@code kv_transfer_params} of the answer and of the decode request: the hand-over that has its blocks. */
    static final String TRANSFER = "lmcache.pd_transfer";

    private final PdSettings settings;
    private final PdSender sender;
    private final String incarnation = UUID.randomUUID().toString();
    private final Map<String, Outgoing> requests = new HashMap<>();
    private long serial;

    /** A request with a receiver. */
    private record Outgoing(PdSender.Transfer transfer, long serial) {}

    public SenderKeys(PdSettings settings, PdSender sender) {
        this.settings = settings;
        this.sender = sender;
    }

    @Override
    public void begin(KvRequest request) {
        Optional<PeerAddress> receiver = request.kvTransferParams()
                .flatMap(params -> params.object(SPEC))
                .map(this::receiver)
                .or(settings::receiver);
        List<BlockHash> blocks = request.blockHashes();
        if (receiver.isPresent() && !blocks.isEmpty()) {
            long number = ++serial;
            String id = incarnation + "." + number;
            requests.put(request.id(), new Outgoing(sender.begin(receiver.get(), id, blocks), number));
        }
    }

    private PeerAddress receiver(JsonFields spec) {
        String host = spec.string("receiver_host")
                .orElseThrow(() -> new InvalidFieldException(spec.field("receiver_host"), "is missing"));
        JsonNode ports = spec.value("receiver_init_port")
                .orElseThrow(() -> new InvalidFieldException(spec.field("receiver_init_port"), "is missing"));
        JsonNode first = ports.isArray() ? ports.path(0) : ports;
        if (!first.isIntegralNumber() || first.asInt() < 1 || first.asInt() > 65_535) {
            throw new InvalidFieldException(
                    spec.field("receiver_init_port"), "is " + ports + ", must be a list of ports from 1 to 65535");
        }
        PeerAddress address = PeerAddress.parse(
                spec.field("receiver_host"), new PeerAddress(PeerAddress.shown(host), first.asInt()).toString());
        if (!settings.access().mayConnect(address.host())) {
            settings.access().refuse(address.toString(), settings.access().notAllowed());
            throw new InvalidFieldException(
                    spec.field("receiver_host"), "is " + settings.access().notAllowed());
        }
        return address;
    }

    @Override
    public List<BlockHash> keys(KvRequest request, int from, int to) {
        List<BlockHash> blocks = request.blockHashes().subList(from, to);
        Outgoing outgoing = requests.get(request.id());
        if (outgoing == null) {
            return blocks;
        }
        List<BlockHash> own = blocks.stream()
                .map(block -> new BlockHash(block.a(), block.b(), block.c(), block.d() ^ outgoing.serial))
                .toList();
        sender.name(outgoing.transfer, own, blocks);
        return own;
    }

    @Override
    public boolean loads(KvRequest request) {
        return false;
    }

    @Override
    public boolean stores(KvRequest request) {
        return requests.containsKey(request.id());
    }

    @Override
    public Optional<JsonFields> forget(KvRequest request, RequestEnd end) {
        Outgoing outgoing = requests.get(request.id());
        boolean complete = end == RequestEnd.LENGTH || end == RequestEnd.STOPPED;
        if (outgoing == null || !complete || !sender.isReached(outgoing.transfer)) {
            return Optional.empty();
        }
        return Optional.of(JsonFields.of(
                "kv_transfer_params",
                JsonFields.empty("kv_transfer_params").toJson().put(TRANSFER, outgoing.transfer.id())));
    }

    @Override
    public void saved(String requestId) {
        Outgoing outgoing = requests.remove(requestId);
        if (outgoing != null) {
            sender.end(outgoing.transfer);
        }
    }
}
