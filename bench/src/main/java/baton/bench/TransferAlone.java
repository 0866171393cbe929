package baton.bench;

import baton.kv.JsonFields;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.embedded.EmbeddedAgent;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.stream.IntStream;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** Transfers of as many bytes as a hand-over has, from the same process, while no engine computes. */
final class TransferAlone implements AutoCloseable {
    private final Arena arena = Arena.ofShared();
    private final EmbeddedAgent agent;
    private final List<Range> ranges = new ArrayList<>();
    private final TransferAgent.Peer peer;

    private TransferAlone(byte[] metadata, long address, int blocks, long blockBytes) throws TransferException {
        Region pool = Region.allocate(arena, blocks * blockBytes, "transfer alone");
        agent = EmbeddedAgent.open("alone", EmbeddedAgent.Settings.at("127.0.0.1"));
        agent.register(pool);
        peer = agent.connect(metadata, HandoverBench.DEADLINE);
        List<Integer> order = new ArrayList<>(IntStream.range(0, blocks).boxed().toList());
        Collections.shuffle(order, new Random(1));
        for (int i = 0; i < blocks; i++) {
            ranges.add(new Range(
                    pool.memory().address() + i * blockBytes, address + order.get(i) * blockBytes, blockBytes));
        }
    }

    static TransferAlone of(JsonFields ready, int blocks, long blockBytes) throws TransferException {
        return new TransferAlone(
                HexFormat.of().parseHex(ready.string("agent").orElseThrow()),
                ready.integer("address").orElseThrow(),
                blocks,
                blockBytes);
    }

    /** Offers blocks to the other process, for as long as this one lives. */
    static ObjectNode offer(JsonMapper json, int blocks, long blockBytes) throws TransferException {
        Region pool = Region.allocate(Arena.global(), blocks * blockBytes, "transfer alone");
        pool.memory().fill((byte) 1);
        EmbeddedAgent agent = EmbeddedAgent.open("alone", EmbeddedAgent.Settings.at("127.0.0.1"));
        agent.register(pool);
        return json.createObjectNode()
                .put("agent", HexFormat.of().formatHex(agent.metadata()))
                .put("address", pool.memory().address());
    }

    /** Seconds that a transfer of as many blocks took, by the agent's own measurement. */
    double seconds(int blocks) throws TransferException {
        Transfer transfer = agent.start(
                TransferAgent.Operation.READ,
                peer,
                ranges.subList(0, blocks),
                Optional.empty(),
                HandoverBench.DEADLINE);
        return TransferWait.seconds("the transfer alone", transfer);
    }

    @Override
    public void close() {
        agent.close();
        arena.close();
    }
}
