package baton.cuda.sim;

import baton.cuda.driver.CudaException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * The memories of all devices, in one space of addresses that are no process's. No address is given out twice, and between two
 * allocations is a gap, so each access outside of an allocation is noticed.
 */
final class DeviceMemory {
    /** Not canonical on x86-64 and AArch64: no process has memory there. */
    private static final long FIRST = 0x00dc_0000_0000_0000L;

    private static final long ALIGNMENT = 256;
    private static final long GAP = 1 << 20;

    private final long bytesOfDevice;
    private final long[] used;
    private final TreeMap<Long, Allocation> allocations = new TreeMap<>();
    private long next = FIRST;

    DeviceMemory(int devices, long bytesOfDevice) {
        this.bytesOfDevice = bytesOfDevice;
        this.used = new long[devices];
    }

    long bytesOfDevice() {
        return bytesOfDevice;
    }

    long freeBytes(int device) {
        return bytesOfDevice - used[device];
    }

    long allocate(int device, long bytes) {
        if (bytes <= 0) {
            throw new CudaException("cuMemAlloc", 1, "CUDA_ERROR_INVALID_VALUE", "bytes=" + bytes);
        }
        if (bytes > freeBytes(device) || bytes > Integer.MAX_VALUE - 64) {
            throw new CudaException(
                    "cuMemAlloc",
                    2,
                    "CUDA_ERROR_OUT_OF_MEMORY",
                    "bytes=%d; %d of %d bytes are free".formatted(bytes, freeBytes(device), bytesOfDevice));
        }
        used[device] += bytes;
        return add(device, new Allocation.Content((int) bytes));
    }

    private long add(int device, Allocation.Content content) {
        long address = next;
        next = (address + content.bytes.length + GAP + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        allocations.put(address, new Allocation(address, device, content));
        return address;
    }

    void free(long address) {
        Allocation freed = begin("cuMemFree", address);
        freed.live = false;
        used[freed.device] -= freed.content.bytes.length;
    }

    /** A second address of an allocation. */
    long alias(long address) {
        Allocation allocation = begin("cuIpcOpenMemHandle", address);
        return add(allocation.device, allocation.content);
    }

    void closeAlias(long address) {
        begin("cuIpcCloseMemHandle", address).live = false;
    }

    /** The allocation that begins there. */
    Allocation begin(String function, long address) {
        Allocation allocation = allocations.get(address);
        if (allocation == null || !allocation.live) {
            throw new CudaException(
                    function,
                    1,
                    "CUDA_ERROR_INVALID_VALUE",
                    "address=0x%x %s".formatted(address, allocation == null ? "begins no allocation" : "is freed"));
        }
        return allocation;
    }

    /** The allocation that has a range which the host copies or fills. */
    Allocation range(String function, long address, long bytes) {
        String wrong = wrong(address, bytes);
        if (!wrong.isEmpty()) {
            throw new CudaException(
                    function,
                    1,
                    "CUDA_ERROR_INVALID_VALUE",
                    "address=0x%x bytes=%d: %s".formatted(address, bytes, wrong));
        }
        return allocations.floorEntry(address).getValue();
    }

    /** The allocation that a kernel accesses. */
    Allocation access(int device, int lane, long address, int bytes) {
        String wrong = wrong(address, bytes);
        if (wrong.isEmpty()) {
            Allocation found = allocations.floorEntry(address).getValue();
            if (found.device == device) {
                return found;
            }
            wrong = "is memory of device " + found.device;
        }
        throw new KernelFinding(
                KernelFinding.Kind.ILLEGAL_ADDRESS,
                lane,
                "%d bytes at global address 0x%x: %s".formatted(bytes, address, wrong));
    }

    /** Why no range of an allocation is there, or empty. */
    private String wrong(long address, long bytes) {
        Map.Entry<Long, Allocation> entry = allocations.floorEntry(address);
        if (entry == null) {
            return "is below all allocations";
        }
        Allocation below = entry.getValue();
        long size = below.content.bytes.length;
        long first = address - below.base;
        if (bytes < 0 || first > size - bytes) {
            return "is outside of allocations, %d bytes behind the begin of one of %d bytes".formatted(first, size);
        }
        return below.live ? "" : "is freed, %d bytes behind the begin of %d bytes".formatted(first, size);
    }

    void forgetWriters() {
        allocations.values().forEach(allocation -> allocation.content.forgetWriters());
    }

    List<String> live() {
        List<String> live = new ArrayList<>();
        for (Allocation allocation : allocations.values()) {
            if (allocation.live) {
                live.add("%d bytes at 0x%x".formatted(allocation.content.bytes.length, allocation.base));
            }
        }
        return live;
    }
}
