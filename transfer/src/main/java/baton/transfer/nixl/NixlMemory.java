package baton.transfer.nixl;

import baton.kv.KvDevice;
import baton.transfer.Region;
import baton.transfer.TransferException;

/** A range of registered memory, as NIXL knows it. */
record NixlMemory(Kind kind, long address, long bytes) {
    /**
     * A kind of memory and the device that it is of.
     *
     * @param type {@code nixl_mem_t}
     * @param device its number; 0 of the host
     */
    record Kind(int type, long device) {
        static final int DRAM_TYPE = 0;
        static final int VRAM_TYPE = 1;
        static final Kind DRAM = new Kind(DRAM_TYPE, 0);

        @Override
        public String toString() {
            return type == DRAM_TYPE ? "DRAM" : "VRAM of device " + device;
        }
    }

    /** @throws TransferException if NIXL does not know the device */
    static NixlMemory of(Region region) throws TransferException {
        Kind kind = Kind.DRAM;
        if (region.device().isPresent()) {
            KvDevice device = region.device().get();
            if (!isKnown(device)) {
                throw new TransferException("NIXL cannot register memory of " + device + ", of CUDA devices it can");
            }
            kind = new Kind(Kind.VRAM_TYPE, device.number());
        }
        return new NixlMemory(kind, region.address(), region.bytes());
    }

    static boolean isKnown(KvDevice device) {
        return device.kind().equals("cuda");
    }

    boolean contains(long start, long length) {
        return start >= address && length <= bytes && start - address <= bytes - length;
    }
}
