package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.testkit.Await;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;
import tools.jackson.databind.JsonNode;

/** An instance publishes the content of its caches. */
class KvEventsTest {
    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @Test
    void anInstancePublishesItsKvEventsUntilItsEnd() throws Exception {
        Instance instance = INSTANCES.serve(
                "publishing",
                "--kv-offloading-size",
                "0.0625",
                "--kv-events-config",
                "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:0\"}",
                "--kv-events-config.topic",
                "kv@x");
        JsonNode source = instance.get("/kv_event_sources").json().get("0");
        assertThat(source.get("endpoint").asString()).startsWith("tcp://127.0.0.1:");
        assertThat(source.get("topic").asString()).isEqualTo("kv@x");
        try (ZContext context = new ZContext()) {
            ZMQ.Socket subscriber = context.createSocket(SocketType.SUB);
            subscriber.setReceiveTimeOut((int) Instances.DEADLINE.toMillis());
            subscriber.setHandshakeIvl(1_000);
            subscriber.subscribe("kv@");
            // JeroMQ 0.6 loses a subscription at times that is made while no call is made on the socket.
            int[] asked = {0};
            Await.until(Instances.DEADLINE, () -> "no subscription has arrived", () -> {
                if (asked[0]++ % 200 == 0) {
                    if (asked[0] > 1) {
                        subscriber.disconnect(source.get("endpoint").asString());
                    }
                    subscriber.connect(source.get("endpoint").asString());
                }
                int unusedEvents = subscriber.getEvents();
                return instance.metric("baton:kv_event_subscribers", "") == 1;
            });

            assertThat(instance.complete(Ledgers.prompt(50, 3), 1).status()).isEqualTo(200);

            assertThat(subscriber.recvStr()).isEqualTo("kv@x");
            assertThat(ByteBuffer.wrap(subscriber.recv()).getLong()).isZero();
            String batch = new String(subscriber.recv(), StandardCharsets.ISO_8859_1);
            assertThat(batch).startsWith("\u0093\u00cb").contains("type", "BlockStored", "block_hashes");
            Await.until(
                    Instances.DEADLINE,
                    () -> "no batch is counted",
                    () -> instance.metric("baton:kv_event_batches_published_total", "") > 0);
        }
        instance.terminate();
        assertThat(instance.awaitExit()).isZero();
    }

    @Test
    void aWrongKvEventSettingEndsTheStartWithTheAllowedValues() throws Exception {
        Program.Ended ended = Program.run(List.of("serve", "--kv_events_config", "{\"enabled\": true}"));
        assertThat(ended.status()).isEqualTo(2);
        assertThat(ended.err()).contains("kv_events_config.enabled: unknown field; known: enable_kv_cache_events, ");
    }
}
