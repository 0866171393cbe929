package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.InstantSource;
import java.util.concurrent.atomic.AtomicBoolean;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Mooncake's HTTP metadata server: GET, PUT and DELETE of {@code <address>?key=<key>}. A segment has two keys, {@code rpc_meta}, which
 * is its engine's handshake daemon and which no second engine can put, and {@code ram}, its descriptor.
 */
final class ServerDirectory implements SegmentDirectory {
    private static final Logger LOG = LoggerFactory.getLogger(ServerDirectory.class);

    /** Mooncake's own. */
    private static final Duration TIMEOUT = Duration.ofSeconds(3);

    private static final String UNRESERVED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";

    private final MetadataSource.Http source;
    private final JsonMapper json;
    private final int longest;
    private final Ticker ticker;
    private final HttpClient http;
    private final AtomicBoolean named = new AtomicBoolean();
    private volatile String name = "";

    /** @param longest bytes of an answer */
    ServerDirectory(MetadataSource.Http source, JsonMapper json, int longest, Ticker ticker) {
        this.source = source;
        this.json = json;
        this.longest = longest;
        this.ticker = ticker;
        this.http = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(TIMEOUT)
                .build();
    }

    @Override
    public String ownName(PeerAddress rpc) {
        return source.segment().orElseGet(rpc::toString);
    }

    @Override
    public Located find(String segment, Deadline deadline) throws TransferException {
        if (!MetadataSource.Http.isName(segment)) {
            throw new TransferException("segment '%s' is no name".formatted(PeerAddress.shown(segment)));
        }
        JsonNode rpc = read(rpcKey(segment), deadline);
        PeerAddress address = PeerAddress.find(new Endpoint(rpc).text())
                .orElseThrow(() -> new TransferException("metadata of segment %s is not of a Mooncake engine: %s"
                        .formatted(segment, PeerAddress.shown(rpc.toString()))));
        return new Located(address, SegmentDescriptor.parse(json, get(ramKey(segment), deadline)));
    }

    /** The value of an {@code rpc_meta} key. */
    private record Endpoint(JsonNode node) {
        String text() {
            String host = node.path("ip_or_host_name").asString("");
            return (host.contains(":") ? "[" + host + "]" : host) + ":"
                    + node.path("rpc_port").asInt(0);
        }
    }

    private JsonNode read(String key, Deadline deadline) throws TransferException {
        try {
            return json.readTree(get(key, deadline));
        } catch (JacksonException e) {
            throw new TransferException("metadata key %s is not JSON: %s".formatted(key, e.getOriginalMessage()), e);
        }
    }

    private byte[] get(String key, Deadline deadline) throws TransferException {
        HttpResponse<byte[]> answer = call(key, HttpRequest.newBuilder().GET(), deadline);
        if (answer.statusCode() == 404) {
            throw new TransferException("metadata server %s has no key %s: no engine of that name, or not yet"
                    .formatted(source.address(), key));
        }
        requireOk("GET", key, answer);
        return answer.body();
    }

    @Override
    public void publish(PeerAddress rpc, SegmentDescriptor descriptor) throws TransferException {
        Deadline deadline = Deadline.after(ticker, TIMEOUT.multipliedBy(2));
        if (!named.get()) {
            String key = rpcKey(descriptor.name());
            HttpResponse<byte[]> answer = put(
                    key,
                    json.createObjectNode()
                            .put("ip_or_host_name", rpc.host())
                            .put("rpc_port", rpc.port())
                            .toString(),
                    deadline);
            if (answer.statusCode() == 400) {
                throw new TransferException(
                        ("metadata server %s has key %s already: another engine has the name %s, or one that crashed has left it."
                                        + " Give this one another name, or, if no engine has it, delete the key:"
                                        + " curl -X DELETE '%s'")
                                .formatted(source.address(), key, descriptor.name(), uri(key)));
            }
            requireOk("PUT", key, answer);
            name = descriptor.name();
            named.set(true);
        }
        String key = ramKey(descriptor.name());
        requireOk(
                "PUT",
                key,
                put(
                        key,
                        descriptor
                                .toJson(json, InstantSource.system().instant())
                                .toString(),
                        deadline));
    }

    private HttpResponse<byte[]> put(String key, String value, Deadline deadline) throws TransferException {
        return call(
                key,
                HttpRequest.newBuilder()
                        .header("Content-Type", "application/json")
                        .PUT(BodyPublishers.ofString(value)),
                deadline);
    }

    private void requireOk(String method, String key, HttpResponse<byte[]> answer) throws TransferException {
        if (answer.statusCode() != 200) {
            throw new TransferException("metadata server %s answered %s of key %s with status=%d: %s"
                    .formatted(
                            source.address(),
                            method,
                            key,
                            answer.statusCode(),
                            PeerAddress.shown(new String(answer.body(), StandardCharsets.UTF_8))));
        }
    }

    private HttpResponse<byte[]> call(String key, HttpRequest.Builder request, Deadline deadline)
            throws TransferException {
        try {
            return http.send(
                    request.uri(uri(key))
                            .timeout(atLeastOneMilli(deadline.remaining(TIMEOUT)))
                            .build(),
                    BodyHandlers.limiting(BodyHandlers.ofByteArray(), longest));
        } catch (IOException e) {
            throw new TransferException(
                    "metadata server %s cannot be asked for key %s: %s".formatted(source.address(), key, e), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TransferException("interrupted while the metadata server was asked", e);
        }
    }

    private static Duration atLeastOneMilli(Duration duration) {
        return duration.isPositive() ? duration : Duration.ofMillis(1);
    }

    private URI uri(String key) {
        return URI.create(source.address() + "?key=" + encoded(key));
    }

    /** Encodes a key as curl does: a server that does not decode keys finds only keys that are encoded alike. */
    static String encoded(String key) {
        StringBuilder text = new StringBuilder();
        for (byte each : key.getBytes(StandardCharsets.UTF_8)) {
            if (UNRESERVED.indexOf(each) >= 0) {
                text.append((char) each);
            } else {
                text.append("%%%02X".formatted(each & 0xff));
            }
        }
        return text.toString();
    }

    private String rpcKey(String segment) {
        return prefix() + "rpc_meta/" + segment;
    }

    /** The key of a segment in RAM; a name with a slash names its kind of memory itself. */
    private String ramKey(String segment) {
        return prefix() + (segment.contains("/") ? "" : "ram/") + segment;
    }

    private String prefix() {
        return source.cluster().map(cluster -> "mooncake/" + cluster + "/").orElse("mooncake/");
    }

    @Override
    public void close() {
        if (named.getAndSet(false)) {
            Deadline deadline = Deadline.after(ticker, TIMEOUT);
            for (String key : new String[] {rpcKey(name), ramKey(name)}) {
                try {
                    requireOk("DELETE", key, call(key, HttpRequest.newBuilder().DELETE(), deadline));
                } catch (TransferException e) {
                    LOG.warn(
                            "metadata of this engine stays, and keeps the name {} from others: {}",
                            name,
                            e.getMessage());
                }
            }
        }
        http.shutdownNow();
    }
}
