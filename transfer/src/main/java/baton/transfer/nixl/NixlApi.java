package baton.transfer.nixl;

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
import java.util.Optional;
import java.util.TreeMap;

/**
 * The functions of {@code libnixl_capi.so} that an agent needs, in Java's types. The C API is NIXL's {@code src/bindings/rust/wrapper.h},
 * of version 1.0 and later. Handles are addresses of native objects; none may be used after its destruction, and those of one agent
 * by one thread at a time only.
 */
final class NixlApi {
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

    private static final long CONFIG_TELEMETRY =
            CONFIG.byteOffset(MemoryLayout.PathElement.groupElement("capture_telemetry"));
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

    /** What NIXL measured of one request. */
    record RequestTelemetry(long postMicros, long transferMicros, long bytes, long descriptors) {}

    private final MethodHandle free;
    private final MethodHandle isStub;
    private final MethodHandle createAgent;
    private final MethodHandle destroyAgent;
    private final MethodHandle getAvailablePlugins;
    private final MethodHandle stringListSize;
    private final MethodHandle stringListGet;
    private final MethodHandle destroyStringList;
    private final MethodHandle getPluginParams;
    private final MethodHandle destroyMemList;
    private final MethodHandle destroyParams;
    private final MethodHandle paramsAdd;
    private final MethodHandle paramsIsEmpty;
    private final MethodHandle paramsCreateIterator;
    private final MethodHandle paramsIteratorNext;
    private final MethodHandle paramsDestroyIterator;
    private final MethodHandle createBackend;
    private final MethodHandle destroyBackend;
    private final MethodHandle createOptArgs;
    private final MethodHandle destroyOptArgs;
    private final MethodHandle optArgsAddBackend;
    private final MethodHandle createRegDlist;
    private final MethodHandle regDlistAddDesc;
    private final MethodHandle destroyRegDlist;
    private final MethodHandle registerMem;
    private final MethodHandle deregisterMem;
    private final MethodHandle getLocalMd;
    private final MethodHandle loadRemoteMd;
    private final MethodHandle invalidateRemoteMd;
    private final MethodHandle makeConnection;
    private final MethodHandle createXferDlist;
    private final MethodHandle xferDlistAddDesc;
    private final MethodHandle destroyXferDlist;
    private final MethodHandle createXferReq;
    private final MethodHandle postXferReq;
    private final MethodHandle getXferStatus;
    private final MethodHandle getXferTelemetry;
    private final MethodHandle releaseXferReq;
    private final MethodHandle destroyXferReq;
    private final MethodHandle createNotifMap;
    private final MethodHandle destroyNotifMap;
    private final MethodHandle clearNotifMap;
    private final MethodHandle getNotifs;
    private final MethodHandle notifMapSize;
    private final MethodHandle notifMapGetAgentAt;
    private final MethodHandle notifMapGetNotifsSize;
    private final MethodHandle notifMapGetNotif;
    private final MethodHandle genNotif;

    /** @throws NoSuchElementException if a function is missing */
    NixlApi(SymbolLookup symbols) {
        Linker linker = Linker.nativeLinker();
        free = linker.downcallHandle(linker.defaultLookup().findOrThrow("free"), FunctionDescriptor.ofVoid(POINTER));
        isStub = linker.downcallHandle(
                symbols.findOrThrow("nixl_capi_is_stub"), FunctionDescriptor.of(ValueLayout.JAVA_BOOLEAN));
        createAgent = function(symbols, "create_configured_agent", POINTER, POINTER, POINTER);
        destroyAgent = function(symbols, "destroy_agent", POINTER);
        getAvailablePlugins = function(symbols, "get_available_plugins", POINTER, POINTER);
        stringListSize = function(symbols, "string_list_size", POINTER, POINTER);
        stringListGet = function(symbols, "string_list_get", POINTER, LONG, POINTER);
        destroyStringList = function(symbols, "destroy_string_list", POINTER);
        getPluginParams = function(symbols, "get_plugin_params", POINTER, POINTER, POINTER, POINTER);
        destroyMemList = function(symbols, "destroy_mem_list", POINTER);
        destroyParams = function(symbols, "destroy_params", POINTER);
        paramsAdd = function(symbols, "params_add", POINTER, POINTER, POINTER);
        paramsIsEmpty = function(symbols, "params_is_empty", POINTER, POINTER);
        paramsCreateIterator = function(symbols, "params_create_iterator", POINTER, POINTER);
        paramsIteratorNext = function(symbols, "params_iterator_next", POINTER, POINTER, POINTER, POINTER);
        paramsDestroyIterator = function(symbols, "params_destroy_iterator", POINTER);
        createBackend = function(symbols, "create_backend", POINTER, POINTER, POINTER, POINTER);
        destroyBackend = function(symbols, "destroy_backend", POINTER);
        createOptArgs = function(symbols, "create_opt_args", POINTER);
        destroyOptArgs = function(symbols, "destroy_opt_args", POINTER);
        optArgsAddBackend = function(symbols, "opt_args_add_backend", POINTER, POINTER);
        createRegDlist = function(symbols, "create_reg_dlist", INT, POINTER);
        regDlistAddDesc = function(symbols, "reg_dlist_add_desc", POINTER, LONG, LONG, LONG, POINTER, LONG);
        destroyRegDlist = function(symbols, "destroy_reg_dlist", POINTER);
        registerMem = function(symbols, "register_mem", POINTER, POINTER, POINTER);
        deregisterMem = function(symbols, "deregister_mem", POINTER, POINTER, POINTER);
        getLocalMd = function(symbols, "get_local_md", POINTER, POINTER, POINTER);
        loadRemoteMd = function(symbols, "load_remote_md", POINTER, POINTER, LONG, POINTER);
        invalidateRemoteMd = function(symbols, "invalidate_remote_md", POINTER, POINTER);
        makeConnection = function(symbols, "agent_make_connection", POINTER, POINTER, POINTER);
        createXferDlist = function(symbols, "create_xfer_dlist", INT, POINTER);
        xferDlistAddDesc = function(symbols, "xfer_dlist_add_desc", POINTER, LONG, LONG, LONG);
        destroyXferDlist = function(symbols, "destroy_xfer_dlist", POINTER);
        createXferReq = function(symbols, "create_xfer_req", POINTER, INT, POINTER, POINTER, POINTER, POINTER, POINTER);
        postXferReq = function(symbols, "post_xfer_req", POINTER, POINTER, POINTER);
        getXferStatus = function(symbols, "get_xfer_status", POINTER, POINTER);
        getXferTelemetry = function(symbols, "get_xfer_telemetry", POINTER, POINTER, POINTER);
        releaseXferReq = function(symbols, "release_xfer_req", POINTER, POINTER);
        destroyXferReq = function(symbols, "destroy_xfer_req", POINTER);
        createNotifMap = function(symbols, "create_notif_map", POINTER);
        destroyNotifMap = function(symbols, "destroy_notif_map", POINTER);
        clearNotifMap = function(symbols, "notif_map_clear", POINTER);
        getNotifs = function(symbols, "get_notifs", POINTER, POINTER, POINTER);
        notifMapSize = function(symbols, "notif_map_size", POINTER, POINTER);
        notifMapGetAgentAt = function(symbols, "notif_map_get_agent_at", POINTER, LONG, POINTER);
        notifMapGetNotifsSize = function(symbols, "notif_map_get_notifs_size", POINTER, POINTER, POINTER);
        notifMapGetNotif = function(symbols, "notif_map_get_notif", POINTER, POINTER, LONG, POINTER, POINTER);
        genNotif = function(symbols, "gen_notif", POINTER, POINTER, POINTER, LONG, POINTER);
    }

    private static MethodHandle function(SymbolLookup symbols, String name, MemoryLayout... parameters) {
        return Linker.nativeLinker()
                .downcallHandle(symbols.findOrThrow("nixl_capi_" + name), FunctionDescriptor.of(INT, parameters));
    }

    boolean isStub() {
        try {
            return (boolean) isStub.invokeExact();
        } catch (Throwable e) {
            throw unexpected(e);
        }
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
            config.set(ValueLayout.JAVA_BOOLEAN, CONFIG_TELEMETRY, true);
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

    /**
     * The parameters of a backend with their defaults, as far as it tells.
     *
     * @throws TransferException if there is no such plugin or it cannot be loaded
     */
    Map<String, String> backendDefaults(MemorySegment agent, String plugin) throws TransferException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment parameters = pluginParameters(agent, plugin, arena);
            Map<String, String> defaults = new TreeMap<>();
            MemorySegment empty = arena.allocate(ValueLayout.JAVA_BOOLEAN);
            MemorySegment out = arena.allocate(POINTER);
            if (!call(() -> (int) paramsIsEmpty.invokeExact(parameters, empty)).failed()
                    && !empty.get(ValueLayout.JAVA_BOOLEAN, 0)
                    && !call(() -> (int) paramsCreateIterator.invokeExact(parameters, out))
                            .failed()) {
                MemorySegment iterator = out.get(POINTER, 0);
                MemorySegment key = arena.allocate(POINTER);
                MemorySegment value = arena.allocate(POINTER);
                MemorySegment more = arena.allocate(ValueLayout.JAVA_BOOLEAN);
                more.set(ValueLayout.JAVA_BOOLEAN, 0, true);
                while (more.get(ValueLayout.JAVA_BOOLEAN, 0)
                        && !call(() -> (int) paramsIteratorNext.invokeExact(iterator, key, value, more))
                                .failed()
                        && key.get(POINTER, 0).address() != 0) {
                    defaults.put(string(key.get(POINTER, 0)), string(value.get(POINTER, 0)));
                }
                Status _ = call(() -> (int) paramsDestroyIterator.invokeExact(iterator));
            }
            Status _ = call(() -> (int) destroyParams.invokeExact(parameters));
            return defaults;
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
     * What other agents must know of this one: its backends' addresses and its registered memory.
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
     * Makes another agent known, from what {@link #localMetadata} gave there. NIXL reads the bytes without much checking.
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
            throw unexpected(e);
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

    Optional<RequestTelemetry> telemetry(MemorySegment agent, MemorySegment request) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(LONG, 5);
            if (call(() -> (int) getXferTelemetry.invokeExact(agent, request, out))
                    .failed()) {
                return Optional.empty();
            }
            return Optional.of(new RequestTelemetry(
                    out.getAtIndex(LONG, 1),
                    out.getAtIndex(LONG, 2),
                    out.getAtIndex(LONG, 3),
                    out.getAtIndex(LONG, 4)));
        }
    }

    /** Gives a request back, cancelling it if it is under way: NIXL does not say when the cancelled one stops to touch memory. */
    void release(MemorySegment agent, MemorySegment request) {
        Status released = call(() -> (int) releaseXferReq.invokeExact(agent, request));
        if (!released.failed()) {
            Status _ = call(() -> (int) destroyXferReq.invokeExact(request));
        }
    }

    /** Takes the messages that have arrived; calling it makes progress, also of what peers do with this agent's memory. */
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
            throw unexpected(e);
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

    private interface Call {
        int run() throws Throwable;
    }

    private static Status call(Call call) {
        try {
            return Status.of(call.run());
        } catch (Throwable e) {
            throw unexpected(e);
        }
    }

    private static RuntimeException unexpected(Throwable e) {
        if (e instanceof Error error) {
            throw error;
        }
        if (e instanceof RuntimeException runtime) {
            return runtime;
        }
        throw new AssertionError("a C function throws nothing", e);
    }
}
