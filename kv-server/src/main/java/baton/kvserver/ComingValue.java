package baton.kvserver;

import baton.kvserver.Cache.Room;
import java.lang.foreign.MemorySegment;
import java.util.List;

/** A value that is coming, and goes straight to its place in the {@link Cache}'s memory. One thread uses it. */
final class ComingValue {
    private static final int LEAST_ROOM = 64 << 10;
    private static final int MOST_ROOM = 1 << 20;

    private final Cache cache;
    private final Entry entry;
    private int arrived;
    private List<MemorySegment> places = List.of();
    private int place;
    private long placeAt;

    /** @param entry that has begun */
    ComingValue(Cache cache, Entry entry) {
        this.cache = cache;
        this.entry = entry;
    }

    /** Bytes that have not come. */
    int left() {
        return entry.length - arrived;
    }

    /**
     * Takes room for the next bytes, if there is none.
     *
     * @param force whether other values go for it that are in no file
     */
    Room takeRoom(boolean force) {
        if (place < places.size()) {
            return Room.TAKEN;
        }
        if (entry.room() <= arrived) {
            Room room = cache.more(entry, Math.min(left(), Math.clamp(arrived, LEAST_ROOM, MOST_ROOM)), force);
            if (room != Room.TAKEN) {
                return room;
            }
        }
        places = cache.bytes(entry, arrived);
        place = 0;
        placeAt = 0;
        return Room.TAKEN;
    }

    /** Where the next bytes go, once there is room: at least one. */
    MemorySegment place() {
        return places.get(place).asSlice(placeAt);
    }

    /** Counts bytes that are in their place; look-ups find the value after the last. @return whether it is complete */
    boolean placed(int bytes) {
        arrived += bytes;
        placeAt += bytes;
        if (place < places.size() && placeAt == places.get(place).byteSize()) {
            place++;
            placeAt = 0;
        }
        if (left() > 0) {
            return false;
        }
        cache.commit(entry);
        return true;
    }

    /** Drops the value, which will not become complete. */
    void abort() {
        cache.abort(entry);
    }
}
