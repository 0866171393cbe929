package baton.store.remote;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.channel.DefaultMaxMessagesRecvByteBufAllocator;

/**
 * Lets a connection choose the memory of the next bytes read, so that bytes with a known destination are not copied. The connection chooses
 * right before each read, on its event loop.
 */
public final class DirectReads extends DefaultMaxMessagesRecvByteBufAllocator {
    private static final int READS_IN_A_ROW = 16;

    private final Reader reader;

    /** Gives the memory into which the next bytes are read. */
    @FunctionalInterface
    public interface Reader {
        /** Where the next bytes go: a buffer with room for at least one. It is released when they have been dealt with. */
        ByteBuf next(ByteBufAllocator allocator);
    }

    public DirectReads(Reader reader) {
        super(READS_IN_A_ROW);
        this.reader = reader;
    }

    @Override
    @SuppressWarnings("deprecation") // the only interface that this method can return
    public Handle newHandle() {
        return new MaxMessageHandle() {
            @Override
            public ByteBuf allocate(ByteBufAllocator allocator) {
                return reader.next(allocator);
            }

            @Override
            public int guess() {
                return 0;
            }
        };
    }
}
