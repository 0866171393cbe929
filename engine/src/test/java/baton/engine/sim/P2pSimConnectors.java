package baton.engine.sim;

import baton.connectors.p2pnccl.P2pNcclConnector;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.kv.connector.KvConnector;
import baton.memory.Crc32c;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pMessage;
import baton.messages.p2p.P2pMessage.Checksum;
import baton.messages.p2p.P2pMessage.Put;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.messages.p2p.P2pRequestId;
import baton.pipe.Tensor;
import baton.pipe.TensorBytes;
import baton.pipe.p2p.P2pException;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats;
import baton.pipe.p2p.TensorExchange;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import java.util.zip.CRC32C;

/**
 * P2pNcclConnector over an exchange in the simulated network. Faults: tensors are lost, late, reordered, duplicated or corrupt
 * (and then dropped), or find no memory on either side; peers die between a prompt's layers; ids are reused, or changed to
 * another request's.
 *
 * <p>So a tensor of another client's prompt may arrive under an id, and the connector has to detect it.
 */
final class P2pSimConnectors extends FaultyConnectors {
    private static final String HOST = "127.0.0.1";
    private static final int FIRST_PORT = 5000;

    private final Map<String, Exchange> exchanges = new HashMap<>();
    private final List<String> ids = new ArrayList<>();

    P2pSimConnectors(SimCluster.Site site) {
        super(site);
        faults.inSome(0.2, "buffer full");
        faults.inSome(0.3, "id changed");
    }

    @Override
    public KvConnector connect(SimNode node) {
        CooperativeThreads threads = new CooperativeThreads();
        return new P2pNcclConnector(new ThreadsRuntime(node.ticker(), threads), (_, _) -> {
            Exchange exchange = new Exchange(node, threads);
            exchanges.put(node.name(), exchange);
            return exchange;
        });
    }

    @Override
    public Map<String, Object> settings(String instance) {
        return Map.of("load_timeout", 0.15, "allowed_peers", List.of(HOST));
    }

    @Override
    public int port(String instance) {
        return FIRST_PORT + (instance.startsWith("p") ? 0 : 100) + Integer.parseInt(instance.substring(1));
    }

    private PeerAddress address(String instance) {
        return new PeerAddress(HOST, port(instance));
    }

    private static String name(PeerAddress address) {
        int number = address.port() - FIRST_PORT;
        return number < 100 ? "p" + number : "d" + (number - 100);
    }

    @Override
    public Optional<String> pairId(String prefill, String decode, int number) {
        String id = new P2pRequestId(address(prefill), address(decode), "%032x".formatted(number)).format();
        ids.add(id);
        return Optional.of(id);
    }

    @Override
    public void poll(SimNode node) {
        Optional.ofNullable(exchanges.get(node.name())).ifPresent(Exchange::poll);
    }

    @Override
    public Arena arena() {
        // Threads that load write to it.
        return Arena.ofShared();
    }

    /** The exchange of one life of an instance. It addresses peers by name, in whichever life they are. */
    private final class Exchange implements TensorExchange {
        private final SimNode node;
        private final CooperativeThreads threads;
        private final P2pStats stats = new P2pStats();
        private final Map<String, Tensors> here = new HashMap<>();
        private final Set<String> unwanted = new HashSet<>();
        private final List<Outgoing> queue = new ArrayList<>();
        private boolean closed;

        private Exchange(SimNode node, CooperativeThreads threads) {
            this.node = node;
            this.threads = threads;
        }

        private record Tensors(TensorHead head, byte[] data) {}

        private record Outgoing(PeerAddress to, String tensorId, byte[] message) {}

        private void poll() {
            for (Optional<byte[]> message = node.endpoint().receive();
                    message.isPresent();
                    message = node.endpoint().receive()) {
                arrived(message.get());
            }
            threads.run();
            for (Iterator<Outgoing> each = queue.iterator(); each.hasNext(); ) {
                Outgoing next = each.next();
                node.endpoint().send(name(next.to), next.message);
                each.remove();
            }
        }

        /** A message: checksum, length and bytes of the head, the sender's port, then the tensor's bytes. */
        private void arrived(byte[] message) {
            ByteBuffer bytes = ByteBuffer.wrap(message);
            int sum = bytes.getInt();
            if (sum != sum(message)) {
                return;
            }
            byte[] head = new byte[bytes.getInt()];
            bytes.get(head);
            int port = bytes.getInt();
            byte[] data = Arrays.copyOfRange(message, bytes.position(), message.length);
            if (P2pMessage.decode(head) instanceof Put(String tensorId, TensorHead tensor)
                    && !unwanted.contains(group(tensorId))
                    && !faults.happens("buffer full", 0.25)) {
                here.put(port + "/" + tensorId, new Tensors(tensor, data));
            }
        }

        private static int sum(byte[] message) {
            CRC32C crc = new CRC32C();
            crc.update(message, Integer.BYTES, message.length - Integer.BYTES);
            return (int) crc.getValue();
        }

        private static String group(String tensorId) {
            return tensorId.substring(0, tensorId.indexOf('#'));
        }

        @Override
        public PeerAddress address() {
            return P2pSimConnectors.this.address(node.name());
        }

        @Override
        public P2pStats stats() {
            return stats;
        }

        @Override
        public boolean isSending() {
            return !queue.isEmpty();
        }

        @Override
        public long heldBytes() {
            return here.values().stream()
                    .mapToLong(tensor -> tensor.data.length)
                    .sum();
        }

        @Override
        public void send(PeerAddress to, String tensorId, TensorHead head, Function<TensorBytes, KvFence> fill)
                throws P2pException {
            if (faults.happens("buffer full")) {
                throw new P2pException(Fault.OUT_OF_MEMORY, "simulated");
            }
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment data = arena.allocate(Tensor.bytes(Tensor.Type.named(head.dtype()), head.shape()));
                fill.apply(new TensorBytes.Host(data)).await();
                byte[] put = new Put(
                                changedId(tensorId), head.withChecksum(new Checksum(KvDigest.CRC32C, Crc32c.of(data))))
                        .encode();
                byte[] message = new byte[3 * Integer.BYTES + put.length + (int) data.byteSize()];
                ByteBuffer bytes = ByteBuffer.wrap(message)
                        .putInt(0)
                        .putInt(put.length)
                        .put(put)
                        .putInt(address().port());
                bytes.put(data.toArray(ValueLayout.JAVA_BYTE));
                bytes.putInt(0, sum(message));
                queue.add(new Outgoing(to, tensorId, message));
            }
        }

        /** The id, or sometimes another request's. */
        private String changedId(String tensorId) {
            return faults.happens("id changed")
                    ? ids.get(random.nextInt(ids.size())) + tensorId.substring(tensorId.indexOf('#'))
                    : tensorId;
        }

        private boolean isGone(PeerAddress peer, Optional<Exchange> life) {
            return life.isEmpty() || exchanges.get(name(peer)) != life.get();
        }

        /** Runs on a load's thread, while the simulation waits. */
        @Override
        public Received receive(PeerAddress from, String tensorId, Duration timeout) throws P2pException {
            String key = from.port() + "/" + tensorId;
            long end = node.ticker().nanos() + timeout.toNanos();
            Optional<Exchange> life = Optional.ofNullable(exchanges.get(name(from)));
            threads.await(() -> closed
                    || here.containsKey(key)
                    || unwanted.contains(group(tensorId))
                    || isGone(from, life)
                    || node.ticker().nanos() - end >= 0);
            Optional<Tensors> tensor = Optional.ofNullable(here.remove(key));
            if (closed || unwanted.contains(group(tensorId))) {
                throw new P2pException(Fault.CANCELLED, "no request waits for it");
            }
            if (tensor.isEmpty()) {
                throw new P2pException(isGone(from, life) ? Fault.PEER_GONE : Fault.DEADLINE, "simulated");
            }
            Arena arena = Arena.ofConfined();
            MemorySegment data = arena.allocateFrom(ValueLayout.JAVA_BYTE, tensor.get().data);
            return new Received(tensor.get().head, new TensorBytes.Host(data), arena::close);
        }

        @Override
        public void forget(String group) {
            unwanted.add(group);
            here.keySet()
                    .removeIf(key -> group(key.substring(key.indexOf('/') + 1)).equals(group));
        }

        @Override
        public void dropUnsent(String group) {
            queue.removeIf(each -> group(each.tensorId).equals(group));
        }

        @Override
        public void close() {
            closed = true;
            exchanges.remove(node.name(), this);
            threads.run();
        }
    }
}
