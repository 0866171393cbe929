package baton.store.lmcache;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import baton.store.StoreTask;
import baton.store.lm.LmClient;
import baton.store.lm.LmSettings;
import baton.store.lmcache.ObjectTransport.Entry;
import baton.store.lmcache.ObjectTransport.Reads;
import baton.store.remote.RemoteLimits;
import baton.testkit.Damages;
import baton.testkit.Damages.Damage;
import baton.testkit.Damages.Kind;
import baton.testkit.DamagingProxy;
import java.lang.foreign.Arena;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(300)
class LmTransportTest {
    private static final int BYTES = 1000;
    private static final int REPLY_BYTES = 36;

    private final Damages damages = new Damages();

    /** Such an object would pass for one of LMCache's, which has no check. */
    @Test
    void anObjectWithoutAReadableCheckIsAMiss() throws Exception {
        try (KvServer server = KvServer.start(KvServerSettings.of(0, 16 << 20));
                DamagingProxy proxy = new DamagingProxy(
                        "lm",
                        0,
                        new InetSocketAddress(InetAddress.getLoopbackAddress(), server.port()),
                        damages,
                        DamagingProxy.Rewriting.NONE);
                LmTransport transport = connected(proxy.port());
                Arena arena = Arena.ofShared()) {
            List<Entry> objects = List.of(entry(arena));
            assertThat(quiet(transport.put(objects, soon())).succeededCount()).isEqualTo(1);
            Reads whole = transport.get(objects, soon());
            assertThat(quiet(whole.task()).succeededCount()).isEqualTo(1);
            assertThat(whole.found().apply(0).check()).isEqualTo(ObjectCheck.BYTES);

            damages.arm(new Damage(
                    Kind.CUT, DamagingProxy.lanes("lm").getLast(), REPLY_BYTES + BYTES + REPLY_BYTES + 1, 1));
            Reads cut = transport.get(objects, soon());
            assertThat(quiet(cut.task()).succeededCount()).isZero();
            assertThat(damages.disarm()).as("not cut").isFalse();
        }
    }

    private static Entry entry(Arena arena) {
        Entry entry = new Entry(
                "m@1@0@ab@half",
                arena.allocate(ObjectMetadata.BYTES),
                arena.allocate(BYTES),
                arena.allocate(ObjectCheck.BYTES));
        entry.bytes().fill((byte) 7);
        ObjectMetadata.of(1, 5, 50, DType.F16).write(entry.metadata());
        return entry;
    }

    private static LmTransport connected(int port) {
        LmClient client = LmClient.open(
                new LmSettings(
                        "lm://127.0.0.1:" + port,
                        false,
                        Optional.empty(),
                        new RemoteLimits(1, Duration.ofMinutes(2), 16 << 20, Optional.empty())),
                Ticker.system());
        Deadline deadline = soon();
        while (!client.isConnected()) {
            assertThat(deadline.isOver()).as("not connected in time").isFalse();
            LockSupport.parkNanos(100_000);
        }
        return new LmTransport(client);
    }

    private static StoreTask quiet(StoreTask task) throws InterruptedException {
        CountDownLatch quiet = new CountDownLatch(1);
        task.onQuiet(quiet::countDown);
        assertThat(quiet.await(120, TimeUnit.SECONDS)).isTrue();
        return task;
    }

    private static Deadline soon() {
        return Deadline.after(Ticker.system(), Duration.ofMinutes(2));
    }
}
