package baton.server;

import baton.engine.GenerationEvent.Usage;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import io.vertx.core.buffer.Buffer;
import java.time.InstantSource;
import java.util.Locale;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import tools.jackson.core.JsonGenerator;

/**
 * The role of the instance among prefill and decode instances, and the work that it has done since it has the role. A router sets the role:
 * the instance serves every request in any role, but refuses a role for which its connector cannot move KV. A request for one token is
 * prefill work, every other one decode work. Any thread.
 */
final class PdRole {
    static final String PATH = "/v1/pd_role";

    private static final String FIELD = "role";

    private enum Role {
        PREFILL,
        DECODE,
        BOTH;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** @param tokens of prompts that prefill requests had, or those that decode requests generated */
    private record Work(long requests, long tokens) {
        static final Work NONE = new Work(0, 0);

        Work plus(Work other) {
            return new Work(requests + other.requests, tokens + other.tokens);
        }

        void write(JsonGenerator out, String name) {
            out.writeName(name);
            out.writeStartObject();
            out.writeNumberProperty("requests", requests);
            out.writeNumberProperty("tokens", tokens);
            out.writeEndObject();
        }
    }

    private final KvTransferConfig transfer;
    private final InstantSource clock;

    @GuardedBy("this")
    private Role role;

    @GuardedBy("this")
    private long sinceMillis;

    @GuardedBy("this")
    private long epoch;

    /** The counts of requests that have ended. */
    @GuardedBy("this")
    private Work prefill = Work.NONE;

    @GuardedBy("this")
    private Work decode = Work.NONE;

    PdRole(KvTransferConfig transfer, InstantSource clock) {
        this.transfer = transfer;
        this.clock = clock;
        role = transfer.isProducer() == transfer.isConsumer()
                ? Role.BOTH
                : transfer.isProducer() ? Role.PREFILL : Role.DECODE;
        sinceMillis = clock.millis();
    }

    /** A request has ended. */
    synchronized void ended(ResponseStream stream) {
        prefill = prefill.plus(work(stream, true));
        decode = decode.plus(work(stream, false));
    }

    /** The part of a request's work that is of one half; none before its first token, and of requests that came in an earlier role. */
    @GuardedBy("this")
    private Work work(ResponseStream stream, boolean ofPrefill) {
        if (stream.warmsUp() || stream.isPrefill() != ofPrefill) {
            return Work.NONE;
        }
        RequestRecord record = stream.record();
        if (record.firstOutput().isEmpty() || clock.millis() - record.age() / 1_000_000 < sinceMillis) {
            return Work.NONE;
        }
        Usage usage = record.usage();
        return new Work(1, ofPrefill ? usage.promptTokens() : usage.outputTokens());
    }

    /**
     * The answer of {@code GET /v1/pd_role}: {@code role}, {@code since} in seconds of 1970, {@code epoch}, the number of changes, and the
     * {@code requests} and {@code tokens} of {@code prefill} and {@code decode} since then.
     *
     * @param live requests under way
     */
    synchronized Buffer answer(Json json, Set<ResponseStream> live) {
        Work ofPrefill = all(live, true);
        Work ofDecode = all(live, false);
        return json.document(out -> {
            out.writeStartObject();
            writeRole(out);
            ofPrefill.write(out, "prefill");
            ofDecode.write(out, "decode");
            out.writeEndObject();
        });
    }

    private synchronized Work all(Set<ResponseStream> live, boolean ofPrefill) {
        Work all = ofPrefill ? prefill : decode;
        for (ResponseStream each : live) {
            all = all.plus(work(each, ofPrefill));
        }
        return all;
    }

    private synchronized void writeRole(JsonGenerator out) {
        out.writeStringProperty(FIELD, role.toString());
        out.writeNumberProperty("since", sinceMillis / 1000.0);
        out.writeNumberProperty("epoch", epoch);
    }

    /**
     * {@code POST /v1/pd_role}: takes the role of the body and counts work anew; the KV cache stays as it is.
     *
     * @throws ConfigException if there is no such role
     * @throws ApiException with status 409 if the connector's {@code kv_role} does not allow the role
     */
    synchronized Buffer change(JsonFields body) {
        String given = body.string(FIELD).orElse("");
        Role next = Stream.of(Role.values())
                .filter(each -> each.toString().equals(given))
                .findFirst()
                .orElseThrow(() -> ConfigException.unsupported(
                        FIELD,
                        given,
                        Stream.of(Role.values()).map(Role::toString).collect(Collectors.joining(", "))));
        boolean gives = next == Role.DECODE || transfer.connector().isEmpty() || transfer.isProducer();
        boolean takes = next == Role.PREFILL || transfer.connector().isEmpty() || transfer.isConsumer();
        if (!gives || !takes) {
            throw ApiException.conflict(
                    "role is '" + given + "', but kv_role of the KV connector only lets this instance "
                            + (takes ? "take KV caches" : "give KV caches") + "; kv_both allows every role");
        }
        if (next != role) {
            role = next;
            epoch++;
            sinceMillis = clock.millis();
            prefill = Work.NONE;
            decode = Work.NONE;
        }
        return new Json().document(out -> {
            out.writeStartObject();
            writeRole(out);
            out.writeEndObject();
        });
    }
}
