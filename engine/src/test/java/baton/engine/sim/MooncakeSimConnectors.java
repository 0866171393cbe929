package baton.engine.sim;

import baton.connectors.mooncake.MooncakeConnector;
import baton.kv.connector.KvConnector;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.mooncake.EngineTable;
import baton.messages.mooncake.MooncakeExchange;
import baton.messages.mooncake.RankRegistration;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import tools.jackson.databind.node.ObjectNode;

/**
 * MooncakeConnector over simulated agents, of which it uses no permits, as Mooncake has none, and over simulated messages and registries;
 * half of the requests have both legs at once. Faults beside the network's: connections cannot be made, break before a message or an
 * answer has arrived, registries do not answer, background work takes its time, references are changed, swapped and replayed.
 */
final class MooncakeSimConnectors extends OneSidedSimConnectors {
    /** The host of all instances; each has a registry port of its own. */
    private static final String HOST = "127.0.0.1";

    private static final long MOST_NANOS_UNNOTICED = 100_000_000;

    private final Map<PeerAddress, SimRegistry> registries = new LinkedHashMap<>();
    private final Map<PeerAddress, Listening> listeners = new LinkedHashMap<>();
    private int nextPort = 20_000;

    private record Listening(SimExchange exchange, Consumer<MooncakeExchange.Question> arrived) {}

    MooncakeSimConnectors(SimCluster.Site site) {
        super(site);
        faults.inSome(0.3, HANDSHAKE_LATE, HANDSHAKE_FAILS, BREAKS);
    }

    @Override
    public KvConnector connect(SimNode node) {
        TaskRuntime runtime = runtime(node, () -> {
            throw new UnsupportedOperationException("no side channel");
        });
        return new MooncakeConnector(runtime, _ -> new SimExchange(runtime));
    }

    @Override
    public Map<String, Object> settings(String instance) {
        return Map.of(
                "bootstrap_port",
                registryPort(instance),
                "handshake_timeout",
                0.05,
                "abort_request_timeout",
                0.2,
                "transfer_timeout",
                0.15,
                "num_workers",
                1 + random.nextInt(3));
    }

    @Override
    void address(ObjectNode reference, String prefill, boolean wrong) {
        reference.put("remote_bootstrap_addr", "http://" + HOST + ":" + (wrong ? 1 : registryPort(prefill)));
    }

    @Override
    Optional<ObjectNode> tampered(ObjectNode json) {
        switch (random.nextInt(4)) {
            case 0 -> json.put("transfer_id", "another");
            case 1 -> json.put("remote_engine_id", "p" + random.nextInt(4));
            case 2 -> json.remove("remote_bootstrap_addr");
            default -> {
                return Optional.empty();
            }
        }
        return Optional.of(json);
    }

    private static int registryPort(String instance) {
        return (instance.startsWith("p") ? 9100 : 9200) + Integer.parseInt(instance.substring(1));
    }

    private long latency() {
        return 10_000 + random.nextLong(2_000_000);
    }

    /** One side of an instance. */
    private final class SimExchange implements MooncakeExchange {
        private final TaskRuntime runtime;
        private final List<Connection> connections = new ArrayList<>();
        private boolean closed;

        private SimExchange(TaskRuntime runtime) {
            this.runtime = runtime;
        }

        @Override
        public PeerAddress listen(String at, Consumer<Question> arrived) {
            PeerAddress address = new PeerAddress(HOST, nextPort++);
            listeners.put(address, new Listening(this, arrived));
            return address;
        }

        @Override
        public Asking ask(PeerAddress rank, byte[] message, Duration connect, Asker asker) {
            Connection connection = new Connection(this, asker);
            connections.add(connection);
            if (faults.happens(HANDSHAKE_FAILS)) {
                connection.end(Ending.UNREACHED, connect.toNanos());
                return connection;
            }
            runtime.later(latency(), () -> connection.arrive(rank, message));
            return connection;
        }

        @Override
        public Registry serve(String at, int port) throws MessageException {
            PeerAddress address = new PeerAddress(HOST, port);
            SimRegistry registry = new SimRegistry(this, address);
            if (registries.putIfAbsent(address, registry) != null) {
                throw new MessageException("address in use");
            }
            return registry;
        }

        @Override
        public CompletableFuture<Void> register(PeerAddress registry, List<RankRegistration> ranks, Duration timeout) {
            throw new UnsupportedOperationException("each instance has a registry of its own");
        }

        @Override
        public CompletableFuture<EngineTable> query(PeerAddress address, Duration timeout) {
            CompletableFuture<EngineTable> result = new CompletableFuture<>();
            boolean fails = faults.happens(HANDSHAKE_FAILS);
            runtime.later(latency(), () -> {
                SimRegistry registry = registries.get(address);
                if (fails || registry == null) {
                    result.completeExceptionally(new MessageException("nothing answers at " + address));
                } else {
                    result.complete(registry.table());
                }
            });
            return result;
        }

        @Override
        public void close() {
            closed = true;
            registries.values().removeIf(registry -> registry.exchange == this);
            listeners.values().removeIf(listening -> listening.exchange == this);
            List.copyOf(connections).forEach(each -> each.end(MooncakeExchange.Ending.BROKEN, 0));
        }
    }

    private final class Connection implements MooncakeExchange.Asking, MooncakeExchange.Question {
        private final SimExchange asking;
        private final MooncakeExchange.Asker asker;
        private byte[] message = {};
        /** The side that has the message, once it has arrived. */
        private Optional<SimExchange> asked = Optional.empty();

        private boolean over;
        private boolean told;
        private boolean noticed;

        private Connection(SimExchange asking, MooncakeExchange.Asker asker) {
            this.asking = asking;
            this.asker = asker;
        }

        private void arrive(PeerAddress rank, byte[] sent) {
            Listening listening = listeners.get(rank);
            if (over) {
                return;
            }
            if (listening == null) {
                end(MooncakeExchange.Ending.REFUSED, 0);
                return;
            }
            message = sent;
            asked = Optional.of(listening.exchange);
            listening.exchange.connections.add(this);
            boolean breaks = faults.happens(BREAKS);
            if (!breaks || random.nextBoolean()) {
                listening.exchange.runtime.later(latency(), () -> listening.arrived.accept(this));
            }
            if (breaks) {
                end(MooncakeExchange.Ending.BROKEN, random.nextLong(20_000_000));
            }
        }

        /** The decode rank knows after that time, the prefill rank at a time that does not depend on it. */
        private void end(MooncakeExchange.Ending how, long nanos) {
            if (over) {
                return;
            }
            breakOff();
            if (!asking.closed) {
                asking.runtime.later(nanos, () -> {
                    if (!told && !asking.closed) {
                        told = true;
                        asker.ended(how, "simulated: " + how);
                    }
                });
            }
        }

        /** Nothing arrives any more; the prefill rank, which writes on meanwhile, notices later. */
        private void breakOff() {
            over = true;
            asked.ifPresent(side -> side.runtime.later(random.nextLong(MOST_NANOS_UNNOTICED), () -> noticed = true));
        }

        @Override
        public byte[] message() {
            return message;
        }

        @Override
        public void answer(byte[] reply) {
            if (over) {
                return;
            }
            if (faults.happens(BREAKS)) {
                end(MooncakeExchange.Ending.BROKEN, latency());
                return;
            }
            asking.runtime.later(latency(), () -> {
                if (!told && !asking.closed) {
                    asker.answered(reply);
                }
            });
        }

        @Override
        public boolean isOver() {
            return noticed;
        }

        @Override
        public void close() {
            if (!over) {
                breakOff();
            }
            told = true;
        }
    }

    private final class SimRegistry implements MooncakeExchange.Registry {
        private final SimExchange exchange;
        private final PeerAddress address;
        private final List<RankRegistration> ranks = new ArrayList<>();

        private SimRegistry(SimExchange exchange, PeerAddress address) {
            this.exchange = exchange;
            this.address = address;
        }

        @Override
        public int port() {
            return address.port();
        }

        @Override
        public void register(RankRegistration rank) {
            ranks.add(rank);
        }

        private EngineTable table() {
            RankRegistration first = ranks.getFirst();
            return new EngineTable(Map.of(
                    first.dpRank(),
                    new EngineTable.Engine(
                            first.engineId(), Map.of(first.tpRank(), Map.of(first.ppRank(), first.addr())))));
        }

        @Override
        public void close() {
            registries.remove(address, this);
        }
    }
}
