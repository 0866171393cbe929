package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.nixl.NixlHandshake.Payload;
import baton.connectors.nixl.VllmMirror.Hosts;
import baton.connectors.onesided.BlockInterior;
import baton.connectors.onesided.PeerHandshake;
import baton.connectors.onesided.RankInfo;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import baton.messages.PeerAddress;
import baton.testkit.VirtualTicker;
import baton.transfer.TransferException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalInt;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(300)
class VllmMirrorTest {
    private static final KvLayout MODEL = new KvLayout(6, 4, 32, 32, DType.F32);
    private static final VllmRank READER = new VllmRank(MODEL, 4, Optional.of(BlockInterior.CPU_VEC), Optional.empty());
    private static final PeerAddress FIRST = new PeerAddress("127.0.0.2", 5600);
    private static final PeerAddress SECOND = new PeerAddress("127.0.0.3", 5600);

    private final VirtualTicker ticker = new VirtualTicker();
    /** The peers' answers by their addresses; other peers do not answer. */
    private final Map<PeerAddress, byte[]> answers = new HashMap<>();

    private int questions;

    private final PeerHandshake handshake = (peer, rank, _) -> {
        questions++;
        byte[] answer = answers.get(peer);
        if (answer == null) {
            throw new TransferException(peer + " does not answer");
        }
        return new PeerHandshake.Answer(
                NixlHandshake.read(answer, rank, Optional.empty(), READER), OptionalDouble.empty());
    };

    /** The answer of a vLLM instance with that hash. */
    private static byte[] vllm(String hash) {
        return new Payload(
                        hash, Payload.read(VllmContractTest.recorded("payload")).metadata())
                .encode();
    }

    private static List<String> layers() {
        RankInfo info = NixlHandshake.read(vllm(""), Rank.FIRST, Optional.empty(), READER);
        return info.layerNames();
    }

    private VllmMirror mirror(List<String> layers, PeerAddress... peers) {
        return new VllmMirror(List.of(peers), Hosts.NONE, handshake, layers, Runnable::run, ticker);
    }

    @Test
    void aVllmPeersHashIsItsOwn() {
        answers.put(FIRST, vllm("one"));
        VllmMirror mirror = mirror(layers(), FIRST, SECOND);
        assertThat(mirror.hash(FIRST.host())).contains("one");
        // A host has more addresses than that of its side channel.
        assertThat(mirror.hash("127.0.0.9")).contains("one");
    }

    @Test
    void hashesThatDifferAreTakenApartByHost() {
        answers.put(FIRST, vllm("one"));
        answers.put(SECOND, vllm("two"));
        VllmMirror mirror = mirror(layers(), FIRST, SECOND);
        assertThat(mirror.hash(FIRST.host())).contains("one");
        assertThat(mirror.hash(SECOND.host())).contains("two");
        assertThat(mirror.hash("127.0.0.9")).isEmpty();
    }

    /** Pools are upgraded one instance after the other: no instance is listed, and each is asked at the port of its own host. */
    @Test
    void instancesOfTwoVersionsAtTheirHostsEachGetTheirOwnHash() {
        answers.put(FIRST, vllm("version 14"));
        answers.put(SECOND, vllm("version 15"));
        answers.put(new PeerAddress("127.0.0.4", 5600), vllm("another model"));
        answers.put(new PeerAddress("127.0.0.5", 5600), vllm("version 15"));
        VllmMirror mirror = new VllmMirror(
                List.of(),
                new Hosts(List.of("version 14", "version 15"), OptionalInt.of(5600), host -> !host.equals("127.0.0.5")),
                handshake,
                layers(),
                Runnable::run,
                ticker);
        assertThat(mirror.hash(SECOND.host())).contains("version 15");
        assertThat(mirror.hash(FIRST.host())).contains("version 14");
        assertThat(mirror.hash("127.0.0.4")).isEmpty();
        assertThat(mirror.hash("127.0.0.5")).isEmpty();
        assertThat(mirror.hash("127.0.0.9")).isEmpty();
        // The instance is upgraded in place.
        answers.put(FIRST, vllm("version 15"));
        ticker.advance(Duration.ofSeconds(11));
        assertThat(mirror.hash(FIRST.host())).contains("version 15");
    }

    @Test
    void anotherHashIsTakenAfterARestartAndKeptWhileThePeerIsGone() {
        answers.put(FIRST, vllm("one"));
        VllmMirror mirror = mirror(layers(), FIRST);
        assertThat(mirror.hash(FIRST.host())).contains("one");
        answers.put(FIRST, vllm("two"));
        assertThat(mirror.hash(FIRST.host())).contains("one");
        assertThat(questions).isEqualTo(1);
        ticker.advance(Duration.ofSeconds(11));
        assertThat(mirror.hash(FIRST.host())).contains("two");
        answers.clear();
        ticker.advance(Duration.ofSeconds(11));
        assertThat(mirror.hash(FIRST.host())).contains("two");
    }

    @Test
    void aPeerWithOtherLayersHasNoHash() {
        answers.put(FIRST, vllm("one"));
        assertThat(mirror(List.of("model.layers.0.attn"), FIRST).hash(FIRST.host()))
                .isEmpty();
    }
}
