package baton.connectors.nixl;

import baton.connectors.onesided.BlockInterior;
import baton.connectors.onesided.OneSidedSettings;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvDigest;
import baton.kv.ListenAddress;
import baton.kv.Setting;
import baton.kv.connector.ConnectorContext;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.transfer.select.TransferAgents;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import tools.jackson.databind.JsonNode;

/**
 * The NIXL connectors' keys of {@code kv_connector_extra_config}: vLLM's, and some of Baton's; {@link #SETTINGS} describes them.
 *
 * @param oneSided those of one-sided transfers
 * @param agent the whole {@code kv_connector_extra_config}, for the choice of the transfer agent ({@link TransferAgents})
 * @param mirrorsVllm {@code vllm_compat} is {@code "mirror"}: vLLM instances among {@code peers} are asked for their hash
 * @param digest {@code kv_digest}: of the checksums of this instance's blocks; empty for {@code auto}
 */
public record NixlSettings(
        OneSidedSettings oneSided,
        Duration lease,
        Duration decoderBlocksTtl,
        int recomputeThreshold,
        boolean bidirectional,
        int port,
        JsonFields agent,
        List<PeerAddress> peers,
        Optional<VllmCompatibility> vllm,
        boolean mirrorsVllm,
        Optional<BlockInterior> vllmCpuInterior,
        Optional<Integer> vllmTensorParallelSize,
        Optional<KvDigest> digest) {
    private static final String LEASE = "kv_lease_duration";
    private static final String DECODER_TTL = "decoder_kv_blocks_ttl";
    private static final String THRESHOLD = "kv_recompute_threshold";
    private static final String BIDIRECTIONAL = "bidirectional_kv_xfer";
    private static final String ENFORCE = "enforce_handshake_compat";
    private static final String ENGINE_TTL = "engine_ttl";
    private static final String CROSS_LAYERS = "enable_cross_layers_blocks";
    private static final String PUSH_TIMEOUT = "push_registration_timeout";
    private static final String HANDSHAKE_TIMEOUT = "handshake_timeout";
    private static final String TRANSFER_TIMEOUT = "transfer_timeout";
    static final String HOST = "side_channel_host";
    static final String PORT = "side_channel_port";
    private static final String PEERS = "peers";
    private static final String VLLM = "vllm_compat";
    private static final String MIRROR = "mirror";
    private static final String CPU_ISA = "vllm_cpu_attn_isa";
    private static final String VLLM_TP_SIZE = "vllm_tp_size";
    private static final String REQUIRE_VERIFIED = "require_verified_kv";
    private static final String DIGEST = "kv_digest";
    private static final String AUTO = "auto";
    private static final String HOST_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_HOST";
    private static final String PORT_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_PORT";
    private static final double A_YEAR = 31_536_000;

    /** All of them. */
    static final List<Setting> SETTINGS = Setting.join(
            PeerAccess.settings(
                    Setting.absent(
                            HOST,
                            "variable `" + HOST_VARIABLE + "`, else `localhost`",
                            "Where peers ask for the handshake; answers name it, so `0.0.0.0` and `::` are refused."),
                    Setting.absent(
                            PORT,
                            "variable `" + PORT_VARIABLE + "`, else 5600",
                            "Port for handshakes; 0 takes a free one."),
                    Setting.absent(
                            PEERS,
                            "`[]`",
                            "`\"host:port\"` of side channels to connect to at the start; these are allowed peers too."),
                    Setting.of(
                            LEASE,
                            30,
                            "Seconds that a finished prompt's blocks are kept for a reader that sends no heartbeat."),
                    Setting.absent(TRANSFER_TIMEOUT, "`" + LEASE + "`", "Seconds from the start of a load to its end."),
                    Setting.of(HANDSHAKE_TIMEOUT, 5, "Seconds for one handshake."),
                    Setting.of(ENGINE_TTL, 3600, "Seconds after which an unused peer is disconnected; 0 never."),
                    Setting.of(ENFORCE, true, "Refuse peers of another model, dtype or layout."),
                    Setting.of(
                            BIDIRECTIONAL,
                            false,
                            "A prefill instance reads the blocks of a conversation's earlier turns from the decode instance."),
                    Setting.of(THRESHOLD, 64, "An earlier turn of no more tokens is computed, not read."),
                    Setting.of(DECODER_TTL, 480, "Seconds that a turn's blocks are kept for the next turn."),
                    Setting.absent(
                            PUSH_TIMEOUT,
                            "`" + DECODER_TTL + "`",
                            "The most seconds that a decode request waits for blocks to be written."),
                    Setting.absent(
                            CROSS_LAYERS, "as if `true`", "Accepted: a block always has all layers in one range."),
                    Setting.of(
                            REQUIRE_VERIFIED,
                            false,
                            "Do not use blocks without checksums: a vLLM instance's, or with `kv_digest` `none`."),
                    Setting.of(
                            DIGEST,
                            AUTO,
                            "Checksums of this instance's blocks: `crc32c`, `sum61` (which a device can compute), `none`, or"
                                    + " `auto`: `sum61` if the pool is a device's that peers access directly, else `crc32c`."),
                    Setting.absent(
                            CPU_ISA,
                            "none",
                            "How the blocks of a vLLM instance on a CPU are packed: `vec`, `vec16`, `amx`."),
                    Setting.absent(
                            VLLM_TP_SIZE,
                            "none",
                            "Tensor parallel size of vLLM instances with more ranks than key/value heads (one with latents)."),
                    Setting.absent(VLLM, "none", "The options of vLLM instances, see below.")),
            Setting.within(VLLM, VllmCompatibility.SETTINGS),
            TransferAgents.SETTINGS);

    /**
     * @param given {@code kv_connector_extra_config}
     * @param environment the process's variables
     * @throws ConfigException if a value cannot be used
     */
    public static NixlSettings of(JsonFields given, Map<String, String> environment) {
        JsonFields extra = given.withDefaults(SETTINGS);
        JsonFields variables = JsonFields.ofVariables(environment);
        // A block always has all layers in one range, as the setting asks.
        extra.bool(CROSS_LAYERS);
        Duration lease = seconds(extra, LEASE).orElseThrow();
        Duration decoderTtl = seconds(extra, DECODER_TTL).orElseThrow();
        String host =
                extra.string(HOST).or(() -> variables.string(HOST_VARIABLE)).orElse("localhost");
        if (host.isBlank()) {
            throw new ConfigException(extra.field(HOST), "is empty, must be a host name or address");
        }
        ListenAddress.requireOfOneHost(extra.field(HOST), host);
        List<PeerAddress> peers = strings(extra, PEERS).orElse(List.of()).stream()
                .map(peer -> address(extra.field(PEERS), peer))
                .toList();
        PeerAccess access = PeerAccess.of(
                extra,
                extra.field(HOST),
                host,
                peers.stream().map(PeerAddress::host).toList());
        access.requireSafe(extra.field(HOST), host);
        boolean mirrors = isMirror(extra, access);
        OneSidedSettings oneSided = new OneSidedSettings(
                host,
                access,
                seconds(extra, HANDSHAKE_TIMEOUT).orElseThrow(),
                extra.bool(ENFORCE).orElseThrow(),
                mirrors ? Set.copyOf(peers) : Set.of(),
                extra.bool(REQUIRE_VERIFIED).orElseThrow(),
                extra.seconds(ENGINE_TTL, 0, A_YEAR).orElseThrow(),
                lease.multipliedBy(2).dividedBy(3),
                lease.dividedBy(OneSidedSettings.HEARTBEATS_OF_LEASE),
                seconds(extra, TRANSFER_TIMEOUT).orElse(lease),
                seconds(extra, PUSH_TIMEOUT).orElse(decoderTtl));
        return new NixlSettings(
                oneSided,
                lease,
                decoderTtl,
                extra.integerAtLeast(THRESHOLD, 0).orElseThrow(),
                extra.bool(BIDIRECTIONAL).orElseThrow(),
                extra.integer(PORT, 0, 65_535)
                        .or(() -> variables.integer(PORT_VARIABLE, 0, 65_535))
                        .orElse(5600),
                given,
                peers,
                mirrors ? Optional.empty() : extra.object(VLLM).map(VllmCompatibility::of),
                mirrors,
                extra.string(CPU_ISA).map(isa -> cpuInterior(extra.field(CPU_ISA), isa)),
                extra.integerAtLeast(VLLM_TP_SIZE, 1),
                extra.string(DIGEST)
                        .filter(label -> !label.equals(AUTO))
                        .map(label -> KvDigest.find(label)
                                .orElseThrow(() -> ConfigException.unsupported(
                                        extra.field(DIGEST), label, AUTO + ", " + KvDigest.labels()))));
    }

    String host() {
        return oneSided.host();
    }

    PeerAccess access() {
        return oneSided.access();
    }

    /** Reads vLLM instances' handshakes for an instance. */
    VllmRank vllmRank(ConnectorContext context) {
        DType dtype = context.layout().dtype();
        if (vllmCpuInterior.equals(Optional.of(BlockInterior.CPU_AMX)) && dtype.bytes() != 2) {
            throw new ConfigException(
                    context.config().extra().field(CPU_ISA),
                    "is amx, but the KV cache is in " + dtype.torchName()
                            + ": vLLM packs it for amx in bfloat16 and float16 only, must be vec");
        }
        return new VllmRank(context.layout(), context.modelLayout().kvHeads(), vllmCpuInterior, vllmTensorParallelSize);
    }

    private static boolean isMirror(JsonFields extra, PeerAccess access) {
        Optional<String> word = extra.value(VLLM).filter(JsonNode::isString).map(JsonNode::asString);
        if (word.isEmpty()) {
            return false;
        }
        if (!word.get().equals(MIRROR)) {
            throw ConfigException.unsupported(extra.field(VLLM), word.get(), MIRROR + " or an object");
        }
        if (access.secret().isPresent()) {
            throw new ConfigException(
                    extra.field(VLLM), "is " + MIRROR + ", but vLLM's side channel does not know the secret of peers");
        }
        return true;
    }

    /** The versions of vLLM instances that hand over to this one and from it; none if not set. */
    List<String> vllmVersions() {
        return vllm.map(VllmCompatibility::versions).orElse(List.of());
    }

    private static BlockInterior cpuInterior(String field, String isa) {
        return switch (isa) {
            case "vec", "vec16" -> BlockInterior.CPU_VEC;
            case "amx" -> BlockInterior.CPU_AMX;
            default -> throw ConfigException.unsupported(field, isa, "vec, vec16, amx");
        };
    }

    private static Optional<Duration> seconds(JsonFields extra, String name) {
        return extra.seconds(name, 0.001, A_YEAR);
    }

    private static PeerAddress address(String field, String value) {
        return PeerAddress.findWritten(value)
                .orElseThrow(() -> new ConfigException(field, "has '" + value + "', must have host:port"));
    }

    private static Optional<List<String>> strings(JsonFields extra, String name) {
        Optional<List<String>> strings = extra.strings(name);
        if (strings.filter(List::isEmpty).isPresent()) {
            throw new ConfigException(extra.field(name), "must be an array of strings, is []");
        }
        return strings;
    }
}
