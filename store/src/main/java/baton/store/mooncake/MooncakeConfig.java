package baton.store.mooncake;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.io.IOException;
import java.nio.charset.MalformedInputException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import tools.jackson.databind.JsonNode;

/**
 * {@code mooncake.json}, as vLLM 0.32 reads it (vllm/distributed/mooncake_store.py, {@code MooncakeStoreConfig}), with its defaults.
 *
 * @param embedded {@code mode}: {@code embedded}, or else {@code standalone-store}, in which instances give the store no memory
 * @param segmentBytes {@code global_segment_size}: memory that the instance gives the store
 * @param bufferBytes {@code local_buffer_size}: memory for values of the instance's own
 * @param tenant {@code tenant_id}
 */
public record MooncakeConfig(
        boolean embedded,
        String metadataServer,
        String masterServerAddress,
        long segmentBytes,
        long bufferBytes,
        String protocol,
        String deviceName,
        String tenant) {
    public static final String MODE = "mode";
    public static final String TENANT = "tenant_id";
    public static final String DEFAULT_TENANT = "default";
    public static final String BUFFER = "local_buffer_size";
    public static final String MASTER = "master_server_address";
    private static final String METADATA = "metadata_server";
    private static final String SEGMENT = "global_segment_size";
    private static final String PROTOCOL = "protocol";
    private static final String DEVICE = "device_name";

    /** The fields that vLLM reads. {@code enable_offload} is about how the store uses disks, and has no meaning for a reader of blocks. */
    private static final Set<String> FIELDS =
            Set.of(MODE, METADATA, MASTER, SEGMENT, BUFFER, PROTOCOL, DEVICE, TENANT, "enable_offload");

    /** The fields that only Mooncake's own programs read, which may share the file. */
    private static final Set<String> OF_MOONCAKE = Set.of(
            "local_hostname",
            "enable_ssd_offload",
            "ssd_offload_path",
            "enable_client_http_server",
            "client_http_port");

    private static final long DEFAULT_BYTES = 4L << 30;
    private static final long MOST_FILE_BYTES = 1 << 20;
    private static final Pattern SIZE = Pattern.compile("([\\d.]+)\\s*(gb|mb|kb|b)?");
    private static final Map<String, Long> UNITS = Map.of("gb", 1L << 30, "mb", 1L << 20, "kb", 1L << 10, "b", 1L);

    /**
     * Reads a file.
     *
     * @param field that names the file, for errors
     * @throws ConfigException if it cannot be read, or a field cannot be used
     */
    public static MooncakeConfig read(String field, String file) {
        Path path = ConfigException.path(field, file);
        try {
            if (Files.size(path) > MOST_FILE_BYTES) {
                throw new ConfigException(field, "is " + file + ", which is larger than " + MOST_FILE_BYTES + " bytes");
            }
            return of(JsonFields.parse(file, Files.readString(path, StandardCharsets.UTF_8)));
        } catch (MalformedInputException e) {
            throw new ConfigException(field, "is " + file + ", which is not UTF-8", e);
        } catch (IOException e) {
            throw new ConfigException(field, "is " + file + ", which cannot be read: " + e, e);
        }
    }

    /** @throws ConfigException if a field cannot be used */
    public static MooncakeConfig of(JsonFields json) {
        for (String name : json.names()) {
            if (!FIELDS.contains(name) && !OF_MOONCAKE.contains(name)) {
                throw new ConfigException(
                        json.field(name), "is not known; known: " + String.join(", ", new TreeSet<>(FIELDS)));
            }
        }
        boolean embedded = json.choice(MODE, "embedded", "standalone-store")
                .orElse("embedded")
                .equals("embedded");
        long segment = bytes(json, SEGMENT, DEFAULT_BYTES);
        if (embedded && segment == 0) {
            throw new ConfigException(
                    json.field(SEGMENT), "is 0, must be more than 0 in mode embedded; or use mode standalone-store");
        }
        if (!embedded && segment != 0) {
            throw new ConfigException(
                    json.field(SEGMENT),
                    "is " + segment + ", must be set to 0 in mode standalone-store, in which instances give no memory");
        }
        long buffer = bytes(json, BUFFER, DEFAULT_BYTES);
        if (buffer == 0) {
            throw new ConfigException(json.field(BUFFER), "is 0, must be more than 0");
        }
        String protocol = json.choice(PROTOCOL, "tcp", "rdma").orElse("rdma");
        String tenant = json.string(TENANT).orElse(DEFAULT_TENANT).strip();
        json.bool("enable_offload");
        return new MooncakeConfig(
                embedded,
                json.string(METADATA).orElse(""),
                json.string(MASTER).orElse(""),
                segment,
                buffer,
                protocol,
                json.string(DEVICE).orElse(""),
                tenant.isEmpty() ? DEFAULT_TENANT : tenant);
    }

    /**
     * A number of bytes: a number, or a text as {@code 512mb}, {@code 1.5 GB}, {@code 4096}.
     *
     * @throws ConfigException if it is none
     */
    public static long bytes(JsonFields json, String name, long ifAbsent) {
        return json.value(name).map(value -> bytes(json.field(name), value)).orElse(ifAbsent);
    }

    private static long bytes(String field, JsonNode value) {
        double bytes = -1;
        if (value.isNumber()) {
            bytes = value.asDouble();
        } else if (value.isString()) {
            Matcher parts = SIZE.matcher(value.asString().strip().toLowerCase(Locale.ROOT));
            if (parts.matches()) {
                try {
                    bytes = Double.parseDouble(parts.group(1))
                            * (parts.group(2) == null ? 1 : UNITS.getOrDefault(parts.group(2), 1L));
                } catch (NumberFormatException _) {
                    bytes = -1;
                }
            }
        }
        if (!(bytes >= 0 && bytes <= 0x1p50)) {
            throw new ConfigException(
                    field, "is " + value + ", must be a number of bytes, or a text with a unit of b, kb, mb, gb");
        }
        return (long) bytes;
    }
}
