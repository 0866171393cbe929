package baton.transfer.nixl;

import baton.memory.NativeFunctions;
import baton.memory.Posix;
import baton.transfer.Range;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;

/**
 * The functions of {@code libnixl_capi.so} that an agent needs, in Java's types. The C API is NIXL's {@code src/bindings/rust/wrapper.h},
 * of version 1.0 and later. Handles are addresses of native objects; none may be used after its destruction, and those of one agent
 * by one thread at a time only.
 */
final class NixlApi extends NativeFunctions {
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout POINTER = ValueLayout.ADDRESS;

    /** {@code nixl_capi_agent_config_t}. */
    private static final MemoryLayout CONFIG = MemoryLayout.structLayout(
            ValueLayout.JAVA_BOOLEAN.withName("enable_prog_thread"),
            ValueLayout.JAVA_BOOLEAN.withName("enable_listen_thread"),
            MemoryLayout.paddingLayout(2),
            INT.withName("listen_port"),
            INT.withName("thread_sync"),
            INT.withName("num_workers"),
            LONG.withName("pthr_delay_us"),
            LONG.withName("lthr_delay_us"),
            ValueLayout.JAVA_BOOLEAN.withName("capture_telemetry"),
            MemoryLayout.paddingLayout(7));

    private static final long CONFIG_LISTENER_DELAY =
            CONFIG.byteOffset(MemoryLayout.PathElement.groupElement("lthr_delay_us"));
    private static final long CONFIG_WORKERS = CONFIG.byteOffset(MemoryLayout.PathElement.groupElement("num_workers"));
    private static final long LISTENER_DELAY_MICROS = 100_000;

    /** {@code nixl_capi_status_t}. Errors of NIXL's C++ API arrive as few of these: most are {@link #BACKEND}. */
    enum Status {
        SUCCESS(0, "success"),
        IN_PROGRESS(1, "in progress"),
        INVALID_PARAM(-1, "invalid parameter"),
        BACKEND(
                -2,
                "refused, or failed in a backend: disconnected peer, unregistered memory, unsupported; NIXL's log line says which"),
        INVALID_STATE(-3, "invalid state"),
        EXCEPTION(-4, "exception"),
        NO_TELEMETRY(-5, "telemetry is not captured"),
        NOT_FOUND(-6, "no metadata of that agent, or no backend for it"),
        UNKNOWN(Integer.MIN_VALUE, "a status that this version of Baton does not know");

        private final int code;
        private final String meaning;

        Status(int code, String meaning) {
            this.code = code;
            this.meaning = meaning;
        }

        static Status of(int code) {
            for (Status status : values()) {
                if (status.code == code) {
                    return status;
                }
            }
            return UNKNOWN;
        }

        boolean failed() {
            return this != SUCCESS && this != IN_PROGRESS;
        }

        @Override
        public String toString() {
            return name() + " (" + meaning + ")";
        }
    }

    private final MethodHandle free = Linker.nativeLinker()
            .downcallHandle(
                    Linker.nativeLinker().defaultLookup().findOrThrow("free"), FunctionDescriptor.ofVoid(POINTER));
    private final MethodHandle isStub = function("is_stub", FunctionDescriptor.of(ValueLayout.JAVA_BOOLEAN));
    private final MethodHandle createAgent = function("create_configured_agent", POINTER, POINTER, POINTER);
    private final MethodHandle destroyAgent = function("destroy_agent", POINTER);
    private final MethodHandle getAvailablePlugins = function("get_available_plugins", POINTER, POINTER);
    private final MethodHandle stringListSize = function("string_list_size", POINTER, POINTER);
    private final MethodHandle stringListGet = function("string_list_get", POINTER, LONG, POINTER);
    private final MethodHandle destroyStringList = function("destroy_string_list", POINTER);
    private final MethodHandle getPluginParams = function("get_plugin_params", POINTER, POINTER, POINTER, POINTER);
    private final MethodHandle destroyMemList = function("destroy_mem_list", POINTER);
    private final MethodHandle destroyParams = function("destroy_params", POINTER);
    private final MethodHandle paramsAdd = function("params_add", POINTER, POINTER, POINTER);
    private final MethodHandle createBackend = function("create_backend", POINTER, POINTER, POINTER, POINTER);
    private final MethodHandle destroyBackend = function("destroy_backend", POINTER);
    private final MethodHandle createOptArgs = function("create_opt_args", POINTER);
    private final MethodHandle destroyOptArgs = function("destroy_opt_args", POINTER);
    private final MethodHandle optArgsAddBackend = function("opt_args_add_backend", POINTER, POINTER);
    private final MethodHandle createRegDlist = function("create_reg_dlist", INT, POINTER);
    private final MethodHandle regDlistAddDesc =
            function("reg_dlist_add_desc", POINTER, LONG, LONG, LONG, POINTER, LONG);
    private final MethodHandle destroyRegDlist = function("destroy_reg_dlist", POINTER);
    private final MethodHandle registerMem = function("register_mem", POINTER, POINTER, POINTER);
    private final MethodHandle deregisterMem = function("deregister_mem", POINTER, POINTER, POINTER);
    private final MethodHandle getLocalMd = function("get_local_md", POINTER, POINTER, POINTER);
    private final MethodHandle loadRemoteMd = function("load_remote_md", POINTER, POINTER, LONG, POINTER);
    private final MethodHandle invalidateRemoteMd = function("invalidate_remote_md", POINTER, POINTER);
    private final MethodHandle makeConnection = function("agent_make_connection", POINTER, POINTER, POINTER);
    private final MethodHandle createXferDlist = function("create_xfer_dlist", INT, POINTER);
    private final MethodHandle xferDlistAddDesc = function("xfer_dlist_add_desc", POINTER, LONG, LONG, LONG);
    private final MethodHandle destroyXferDlist = function("destroy_xfer_dlist", POINTER);
    private final MethodHandle createXferReq =
            function("create_xfer_req", POINTER, INT, POINTER, POINTER, POINTER, POINTER, POINTER);
    private final MethodHandle postXferReq = function("post_xfer_req", POINTER, POINTER, POINTER);
    private final MethodHandle getXferStatus = function("get_xfer_status", POINTER, POINTER);
    private final MethodHandle releaseXferReq = function("release_xfer_req", POINTER, POINTER);
    private final MethodHandle destroyXferReq = function("destroy_xfer_req", POINTER);
    private final MethodHandle createNotifMap = function("create_notif_map", POINTER);
    private final MethodHandle destroyNotifMap = function("destroy_notif_map", POINTER);
    private final MethodHandle clearNotifMap = function("notif_map_clear", POINTER);
    private final MethodHandle getNotifs = function("get_notifs", POINTER, POINTER, POINTER);
    private final MethodHandle notifMapSize = function("notif_map_size", POINTER, POINTER);
    private final MethodHandle notifMapGetAgentAt = function("notif_map_get_agent_at", POINTER, LONG, POINTER);
    private final MethodHandle notifMapGetNotifsSize = function("notif_map_get_notifs_size", POINTER, POINTER, POINTER);
    private final MethodHandle notifMapGetNotif =
            function("notif_map_get_notif", POINTER, POINTER, LONG, POINTER, POINTER);
    private final MethodHandle genNotif = function("gen_notif", POINTER, POINTER, POINTER, LONG, POINTER);

    /** @throws NoSuchElementException if a function is missing */
    NixlApi(SymbolLookup symbols) {
        super(symbols, "nixl_capi_");
    }

    boolean isStub() {
        return Posix.call(() -> (boolean) isStub.invokeExact());
    }

    /**
     * An agent without threads of its own: it makes progress when it is called.
     *
     * @throws TransferException if NIXL refuses
     */
    MemorySegment createAgent(String name) throws TransferException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment config = arena.allocate(CONFIG);
            config.set(INT, CONFIG_WORKERS, 1);
            config.set(LONG, CONFIG_LISTENER_DELAY, LISTENER_DELAY_MICROS);
            MemorySegment out = arena.allocate(POINTER);
            require("create_configured_agent", call(() ->
                    (int) createAgent.invokeExact(arena.allocateFrom(name), config, out)));
            return out.get(POINTER, 0);
        }
    }

    void destroyAgent(MemorySegment agent) {
        Status _ = call(() -> (int) destroyAgent.invokeExact(agent));
    }

    /** The names of backends that could be created. */
    List<String> plugins(MemorySegment agent) throws TransferException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(POINTER);
            require("get_available_plugins", call(() -> (int) getAvailablePlugins.invokeExact(agent, out)));
            MemorySegment list = out.get(POINTER, 0);
            List<String> names = new ArrayList<>();
            MemorySegment size = arena.allocate(LONG);
            require("string_list_size", call(() -> (int) stringListSize.invokeExact(list, size)));
            for (long i = 0; i < size.get(LONG, 0); i++) {
                long index = i;
                require("string_list_get", call(() -> (int) stringListGet.invokeExact(list, index, out)));
                names.add(string(out.get(POINTER, 0)));
            }
            Status _ = call(() -> (int) destroyStringList.invokeExact(list));
            return names.stream().sorted().toList();
        }
    }

    private MemorySegment pluginParameters(MemorySegment agent, String plugin, Arena arena) throws TransferException {
        MemorySegment memories = arena.allocate(POINTER);
        MemorySegment parameters = arena.allocate(POINTER);
        require("get_plugin_params for " + plugin, call(() ->
                (int) getPluginParams.invokeExact(agent, arena.allocateFrom(plugin), memories, parameters)));
        Status _ = call(() -> (int) destroyMemList.invokeExact(memories.get(POINTER, 0)));
        return parameters.get(POINTER, 0);
    }

    /**
     * Creates a backend with its default parameters and these.
     *
     * @throws TransferException if it cannot be created
     */
    MemorySegment createBackend(MemorySegment agent, String plugin, Map<String, String> settings)
            throws TransferException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment parameters = pluginParameters(agent, plugin, arena);
            try {
                for (Map.Entry<String, String> setting : settings.entrySet()) {
                    require("params_add " + setting.getKey(), call(() -> (int) paramsAdd.invokeExact(
                            parameters, arena.allocateFrom(setting.getKey()), arena.allocateFrom(setting.getValue()))));
                }
                MemorySegment out = arena.allocate(POINTER);
                require("create_backend " + plugin, call(() ->
                        (int) createBackend.invokeExact(agent, arena.allocateFrom(plugin), parameters, out)));
                return out.get(POINTER, 0);
            } finally {
                Status _ = call(() -> (int) destroyParams.invokeExact(parameters));
            }
        }
    }

    /** Frees the handle of a backend, which itself lives and dies with its agent. */
    void destroyBackendHandle(MemorySegment backend) {
        Status _ = call(() -> (int) destroyBackend.invokeExact(backend));
    }

    /**
     * Registers memory with all these backends.
     *
     * @throws TransferException if one of them refuses
     */
    void register(MemorySegment agent, List<MemorySegment> backends, NixlMemory memory) throws TransferException {
        for (int i = 0; i < backends.size(); i++) {
            Status status = registration(registerMem, agent, backends.get(i), memory);
            if (status.failed()) {
                backends.subList(0, i).forEach(done -> registration(deregisterMem, agent, done, memory));
                throw new TransferException("NIXL could not register " + memory.bytes() + " bytes: " + status);
            }
        }
    }

    void deregister(MemorySegment agent, List<MemorySegment> backends, NixlMemory memory) {
        backends.forEach(backend -> registration(deregisterMem, agent, backend, memory));
    }

    private Status registration(MethodHandle function, MemorySegment agent, MemorySegment backend, NixlMemory memory) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(POINTER);
            Status created =
                    call(() -> (int) createRegDlist.invokeExact(memory.kind().type(), out));
            if (created.failed()) {
                return created;
            }
            MemorySegment list = out.get(POINTER, 0);
            MemorySegment options = MemorySegment.NULL;
            try {
                Status added = call(() -> (int) regDlistAddDesc.invokeExact(
                        list, memory.address(), memory.bytes(), memory.kind().device(), MemorySegment.NULL, 0L));
                Status optionsMade = call(() -> (int) createOptArgs.invokeExact(out));
                if (added.failed() || optionsMade.failed()) {
                    return added.failed() ? added : optionsMade;
                }
                options = out.get(POINTER, 0);
                MemorySegment withBackend = options;
                Status chosen = call(() -> (int) optArgsAddBackend.invokeExact(withBackend, backend));
                return chosen.failed() ? chosen : call(() -> (int) function.invokeExact(agent, list, withBackend));
            } finally {
                if (options.address() != 0) {
                    MemorySegment made = options;
                    Status _ = call(() -> (int) destroyOptArgs.invokeExact(made));
                }
                Status _ = call(() -> (int) destroyRegDlist.invokeExact(list));
            }
        }
    }

    /**
     * The metadata of this agent for others: its backends' addresses and its registered memory.
     *
     * @throws TransferException if none of its backends reaches other processes
     */
    byte[] localMetadata(MemorySegment agent) throws TransferException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(POINTER);
            MemorySegment length = arena.allocate(LONG);
            require("get_local_md", call(() -> (int) getLocalMd.invokeExact(agent, out, length)));
            MemorySegment data = out.get(POINTER, 0);
            try {
                return data.reinterpret(length.get(LONG, 0)).toArray(ValueLayout.JAVA_BYTE);
            } finally {
                release(data);
            }
        }
    }

    /**
     * Makes another agent known, by the result of {@link #localMetadata} there. NIXL reads the bytes without much checking.
     *
     * @return the other's name
     * @throws TransferException if NIXL refuses, as for another agent under a name it knows
     */
    String loadRemoteMetadata(MemorySegment agent, byte[] metadata) throws TransferException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocateFrom(ValueLayout.JAVA_BYTE, metadata);
            MemorySegment out = arena.allocate(POINTER);
            require("load_remote_md", call(() ->
                    (int) loadRemoteMd.invokeExact(agent, bytes, (long) metadata.length, out)));
            MemorySegment name = out.get(POINTER, 0);
            try {
                return string(name);
            } finally {
                release(name);
            }
        }
    }

    /** Forgets another agent and closes the connection to it. */
    Status invalidateRemote(MemorySegment agent, String name) {
        try (Arena arena = Arena.ofConfined()) {
            return call(() -> (int) invalidateRemoteMd.invokeExact(agent, arena.allocateFrom(name)));
        }
    }

    /** Prepares the connection to another agent that is known. Does not wait for it. */
    Status connect(MemorySegment agent, String name) {
        try (Arena arena = Arena.ofConfined()) {
            return call(() -> (int) makeConnection.invokeExact(agent, arena.allocateFrom(name), MemorySegment.NULL));
        }
    }

    /**
     * A request to move ranges, not yet posted.
     *
     * @param kinds of the memory that all ranges are in
     *
     * @throws TransferException if memory is not registered or the peer is not known
     */
    MemorySegment createRequest(
            MemorySegment agent, Operation operation, List<Range> ranges, NixlTransfer.Kinds kinds, String peer)
            throws TransferException {
        int code = switch (operation) {
            case READ -> 0;
            case WRITE -> 1;
        };
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(POINTER);
            require("create_xfer_dlist", call(() ->
                    (int) createXferDlist.invokeExact(kinds.local().type(), out)));
            MemorySegment local = out.get(POINTER, 0);
            try {
                require("create_xfer_dlist", call(() ->
                        (int) createXferDlist.invokeExact(kinds.remote().type(), out)));
                MemorySegment remote = out.get(POINTER, 0);
                try {
                    for (Range range : ranges) {
                        addDescriptor(
                                local,
                                range.local(),
                                range.bytes(),
                                kinds.local().device());
                        addDescriptor(
                                remote,
                                range.remote(),
                                range.bytes(),
                                kinds.remote().device());
                    }
                    require("create_xfer_req", call(() -> (int) createXferReq.invokeExact(
                            agent, code, local, remote, arena.allocateFrom(peer), out, MemorySegment.NULL)));
                    return out.get(POINTER, 0);
                } finally {
                    Status _ = call(() -> (int) destroyXferDlist.invokeExact(remote));
                }
            } finally {
                Status _ = call(() -> (int) destroyXferDlist.invokeExact(local));
            }
        }
    }

    private void addDescriptor(MemorySegment list, long address, long bytes, long device) throws TransferException {
        int code;
        try {
            code = (int) xferDlistAddDesc.invokeExact(list, address, bytes, device);
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
        if (code != Status.SUCCESS.code) {
            throw new TransferException("nixl_capi_xfer_dlist_add_desc: " + Status.of(code));
        }
    }

    Status post(MemorySegment agent, MemorySegment request) {
        return call(() -> (int) postXferReq.invokeExact(agent, request, MemorySegment.NULL));
    }

    /** Where a posted request is; calling it makes progress. */
    Status status(MemorySegment agent, MemorySegment request) {
        return call(() -> (int) getXferStatus.invokeExact(agent, request));
    }

    /** Gives a request back, cancelling it if it is under way: NIXL does not say when the cancelled one stops to touch memory. */
    void release(MemorySegment agent, MemorySegment request) {
        Status released = call(() -> (int) releaseXferReq.invokeExact(agent, request));
        if (!released.failed()) {
            Status _ = call(() -> (int) destroyXferReq.invokeExact(request));
        }
    }

    /** Takes the messages that have arrived; calling it makes progress, also of peers' operations on this agent's memory. */
    List<Notification> notifications(MemorySegment agent, MemorySegment map) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment size = arena.allocate(LONG);
            if (call(() -> (int) getNotifs.invokeExact(agent, map, MemorySegment.NULL))
                            .failed()
                    || call(() -> (int) notifMapSize.invokeExact(map, size)).failed()
                    || size.get(LONG, 0) == 0) {
                return List.of();
            }
            List<Notification> messages = new ArrayList<>();
            MemorySegment out = arena.allocate(POINTER);
            MemorySegment count = arena.allocate(LONG);
            MemorySegment length = arena.allocate(LONG);
            for (long i = 0; i < size.get(LONG, 0); i++) {
                long sender = i;
                if (call(() -> (int) notifMapGetAgentAt.invokeExact(map, sender, out))
                        .failed()) {
                    continue;
                }
                MemorySegment name = out.get(POINTER, 0);
                if (call(() -> (int) notifMapGetNotifsSize.invokeExact(map, name, count))
                        .failed()) {
                    continue;
                }
                for (long j = 0; j < count.get(LONG, 0); j++) {
                    long message = j;
                    if (!call(() -> (int) notifMapGetNotif.invokeExact(map, name, message, out, length))
                            .failed()) {
                        messages.add(new Notification(
                                string(name),
                                out.get(POINTER, 0)
                                        .reinterpret(length.get(LONG, 0))
                                        .toArray(ValueLayout.JAVA_BYTE)));
                    }
                }
            }
            Status _ = call(() -> (int) clearNotifMap.invokeExact(map));
            return messages;
        }
    }

    MemorySegment createNotificationMap() throws TransferException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(POINTER);
            require("create_notif_map", call(() -> (int) createNotifMap.invokeExact(out)));
            return out.get(POINTER, 0);
        }
    }

    void destroyNotificationMap(MemorySegment map) {
        Status _ = call(() -> (int) destroyNotifMap.invokeExact(map));
    }

    Status notify(MemorySegment agent, String peer, byte[] message) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment bytes = arena.allocateFrom(ValueLayout.JAVA_BYTE, message);
            return call(() -> (int) genNotif.invokeExact(
                    agent, arena.allocateFrom(peer), bytes, (long) message.length, MemorySegment.NULL));
        }
    }

    private void release(MemorySegment allocated) {
        try {
            free.invokeExact(allocated);
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    private static String string(MemorySegment address) {
        return address.reinterpret(Long.MAX_VALUE).getString(0, StandardCharsets.UTF_8);
    }

    private static void require(String function, Status status) throws TransferException {
        if (status.failed()) {
            throw new TransferException("nixl_capi_" + function + ": " + status);
        }
    }

    private static Status call(Posix.Call<Integer> call) {
        return Status.of(Posix.call(call));
    }
}
