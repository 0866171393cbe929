package baton.transfer.mooncake;

import baton.kv.KvDevice;
import baton.memory.NativeFunctions;
import baton.memory.Posix;
import baton.transfer.Range;
import baton.transfer.TransferAgent.Notification;
import baton.transfer.TransferAgent.Operation;
import baton.transfer.TransferException;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * The functions of {@code libtransfer_engine.so} that an agent needs, in Java's types; their C API is Mooncake's
 * {@code transfer_engine_c.h}. Any thread; an engine must not be used after {@link #destroy}.
 */
final class MooncakeApi extends NativeFunctions {
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout POINTER = ValueLayout.ADDRESS;

    /** {@code struct transfer_request}. */
    private static final MemoryLayout REQUEST = MemoryLayout.structLayout(
            INT.withName("opcode"),
            MemoryLayout.paddingLayout(4),
            LONG.withName("source"),
            INT.withName("target_id"),
            MemoryLayout.paddingLayout(4),
            LONG.withName("target_offset"),
            LONG.withName("length"));

    private static final long SOURCE = REQUEST.byteOffset(PathElement.groupElement("source"));
    private static final long TARGET = REQUEST.byteOffset(PathElement.groupElement("target_id"));
    private static final long OFFSET = REQUEST.byteOffset(PathElement.groupElement("target_offset"));
    private static final long LENGTH = REQUEST.byteOffset(PathElement.groupElement("length"));

    /** {@code struct transfer_status}. */
    private static final MemoryLayout STATUS = MemoryLayout.structLayout(
            INT.withName("status"), MemoryLayout.paddingLayout(4), LONG.withName("transferred_bytes"));

    private static final int LONGEST_NAME = 512;
    private static final long LONGEST_TEXT = 1L << 20;
    private static final long INVALID_BATCH = -1;
    /** The location of host memory. */
    private static final String HOST = "cpu:0";

    private final MethodHandle create =
            function("createTransferEngine", FunctionDescriptor.of(POINTER, POINTER, POINTER, POINTER, LONG, INT));
    private final MethodHandle destroy = function("destroyTransferEngine", FunctionDescriptor.ofVoid(POINTER));
    private final MethodHandle discover = function("discoverTopology", POINTER);
    private final MethodHandle localName = function("getLocalIpAndPort", POINTER, POINTER, LONG);
    private final MethodHandle install =
            function("installTransport", FunctionDescriptor.of(POINTER, POINTER, POINTER, POINTER));
    private final MethodHandle open = function("openSegmentNoCache", POINTER, POINTER);
    private final MethodHandle register = function("registerLocalMemory", POINTER, LONG, LONG, POINTER, INT);
    private final MethodHandle unregister = function("unregisterLocalMemory", POINTER, LONG);
    private final MethodHandle allocateBatch = function("allocateBatchID", FunctionDescriptor.of(LONG, POINTER, LONG));
    private final MethodHandle submit = function("submitTransfer", POINTER, LONG, POINTER, LONG);
    private final MethodHandle status = function("getTransferStatus", POINTER, LONG, LONG, POINTER);
    private final MethodHandle freeBatch = function("freeBatchID", POINTER, LONG);
    private final MethodHandle takeNotifications =
            function("getNotifsFromEngine", FunctionDescriptor.of(POINTER, POINTER, POINTER));
    private final MethodHandle freeNotifications = function("freeNotifsMsgBuf", POINTER, INT);

    /** The state of a request. */
    enum Status {
        UNDER_WAY,
        COMPLETED,
        FAILED;

        private static Status of(int code) {
            return switch (code) {
                case 0, 1 -> UNDER_WAY;
                case 4 -> COMPLETED;
                default -> FAILED;
            };
        }
    }

    /** @throws NoSuchElementException if a function is missing */
    MooncakeApi(SymbolLookup symbols) {
        super(
                name -> Optional.of(
                        symbols.find(name).orElseThrow(() -> new NoSuchElementException("no function " + name))),
                "");
    }

    /**
     * An engine, listening.
     *
     * @param protocol {@code tcp} or {@code rdma}
     * @param device RDMA's; empty for all that there are
     * @throws TransferException if it does not start; the reason is in Mooncake's log, on standard error
     */
    MemorySegment create(String metadata, String name, String protocol, Optional<String> device)
            throws TransferException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment engine = (MemorySegment) create.invokeExact(
                    arena.allocateFrom(metadata), arena.allocateFrom(name), arena.allocateFrom(""), 0L, 0);
            if (engine.address() == 0) {
                throw new TransferException(
                        "Mooncake's engine named %s does not start with metadata_server=%s; its log on standard error says why"
                                .formatted(name, metadata));
            }
            MemorySegment arguments = MemorySegment.NULL;
            if (protocol.equals("rdma")) {
                if (device.isPresent()) {
                    arguments = arena.allocate(POINTER, 2);
                    arguments.set(
                            POINTER, 0, arena.allocateFrom("{\"%s\":[[\"%s\"],[]]}".formatted(HOST, device.get())));
                } else {
                    int unusedCode = (int) discover.invokeExact(engine);
                }
            }
            MemorySegment transport =
                    (MemorySegment) install.invokeExact(engine, arena.allocateFrom(protocol), arguments);
            if (transport.address() == 0) {
                destroy(engine);
                throw new TransferException(
                        "Mooncake's engine has no transport for protocol=%s here; its log on standard error says why"
                                .formatted(protocol));
            }
            return engine;
        } catch (TransferException e) {
            throw e;
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    void destroy(MemorySegment engine) {
        try {
            destroy.invokeExact(engine);
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    /** Where its handshake daemon listens: {@code host:port}. */
    String localName(MemorySegment engine) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment text = arena.allocate(LONGEST_NAME);
            int unusedCode = (int) localName.invokeExact(engine, text, (long) LONGEST_NAME);
            return text.getString(0, StandardCharsets.UTF_8);
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    /** Asks for a segment's descriptor anew. Negative if that fails. */
    int open(MemorySegment engine, String segment) {
        try (Arena arena = Arena.ofConfined()) {
            return (int) open.invokeExact(engine, arena.allocateFrom(segment));
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    /**
     * @param memory its address and length only, if it is a device's
     * @return 0, or an error
     */
    int register(MemorySegment engine, MemorySegment memory, Optional<KvDevice> device) {
        String location = device.map(KvDevice::toString).orElse(HOST);
        try (Arena arena = Arena.ofConfined()) {
            return (int)
                    register.invokeExact(engine, memory.address(), memory.byteSize(), arena.allocateFrom(location), 1);
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    /** @return 0, or an error */
    int unregister(MemorySegment engine, MemorySegment memory) {
        return Posix.call(() -> (int) unregister.invokeExact(engine, memory.address()));
    }

    /**
     * Starts a request for each range.
     *
     * @return the batch; empty if the engine refuses
     */
    Optional<Long> submit(MemorySegment engine, Operation operation, int segment, List<Range> ranges) {
        try (Arena arena = Arena.ofConfined()) {
            long batch = (long) allocateBatch.invokeExact(engine, (long) ranges.size());
            if (batch == INVALID_BATCH) {
                return Optional.empty();
            }
            MemorySegment entries = arena.allocate(REQUEST, ranges.size());
            for (int i = 0; i < ranges.size(); i++) {
                long at = i * REQUEST.byteSize();
                entries.set(INT, at, operation == Operation.WRITE ? 1 : 0);
                entries.set(LONG, at + SOURCE, ranges.get(i).local());
                entries.set(INT, at + TARGET, segment);
                entries.set(LONG, at + OFFSET, ranges.get(i).remote());
                entries.set(LONG, at + LENGTH, ranges.get(i).bytes());
            }
            int code = (int) submit.invokeExact(engine, batch, entries, (long) ranges.size());
            if (code != 0) {
                free(engine, batch);
                return Optional.empty();
            }
            return Optional.of(batch);
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    /** The state of a request of a batch. */
    Status status(MemorySegment engine, long batch, int request) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(STATUS);
            int code = (int) status.invokeExact(engine, batch, (long) request, out);
            return code == 0 ? Status.of(out.get(INT, 0)) : Status.FAILED;
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    /** A batch of which every request's end was seen. */
    void free(MemorySegment engine, long batch) {
        int _ = Posix.call(() -> (int) freeBatch.invokeExact(engine, batch));
    }

    List<Notification> takeNotifications(MemorySegment engine) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment count = arena.allocate(INT);
            MemorySegment messages = (MemorySegment) takeNotifications.invokeExact(engine, count);
            int size = count.get(INT, 0);
            List<Notification> taken = new ArrayList<>();
            if (messages.address() == 0) {
                return taken;
            }
            MemorySegment all = messages.reinterpret(2L * size * POINTER.byteSize());
            for (int i = 0; i < size; i++) {
                taken.add(new Notification(
                        text(all.getAtIndex(POINTER, 2L * i)),
                        NotificationText.message(text(all.getAtIndex(POINTER, 2L * i + 1)))));
            }
            int unusedCode = (int) freeNotifications.invokeExact(messages, size);
            return taken;
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    private static String text(MemorySegment pointer) {
        return pointer.reinterpret(LONGEST_TEXT).getString(0, StandardCharsets.UTF_8);
    }
}
