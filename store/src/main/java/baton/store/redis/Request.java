package baton.store.redis;

import baton.kv.BlockHash;
import baton.store.remote.Failure;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.CommandType;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.RedisCommand;
import io.netty.buffer.ByteBuf;
import java.util.concurrent.atomic.AtomicBoolean;
import org.jspecify.annotations.Nullable;

/**
 * One command and its one reply. It is command and output of Lettuce in one object, so that values go between the network's buffers and a
 * caller's memory without a copy in between, and so that it can decide when it is written whether its memory may still be used.
 *
 * <p>It ends once: {@link #answered} or {@link #failed}, on any thread, usually the connection's.
 */
abstract class Request extends CommandOutput<byte[], byte[], Object> implements RedisCommand<byte[], byte[], Object> {
    private final CommandType type;
    private final long cost;
    private final AtomicBoolean over = new AtomicBoolean();

    /** Set before it is sent. */
    private volatile @Nullable PipelinedConnection connection;

    private volatile long epoch;

    /** @param cost bytes of command or reply, whichever is more */
    Request(CommandType type, long cost) {
        super(ByteArrayCodec.INSTANCE, null);
        this.type = type;
        this.cost = cost;
    }

    final long cost() {
        return cost;
    }

    /** Whether it is worth to be sent still. */
    boolean isWanted() {
        return true;
    }

    /** Writes the command; on the connection's thread. */
    protected abstract void write(ByteBuf to, boolean hasGetex);

    /** The reply is complete, and no error. */
    protected abstract void answered();

    /** There is no reply, or an error. Its text is empty unless it is the server's. */
    protected abstract void failed(Failure cause, String error);

    /** @param sentEpoch tells replies of a connection from those of the one before it */
    final void sendOn(PipelinedConnection sentOn, long sentEpoch) {
        connection = sentOn;
        epoch = sentEpoch;
    }

    final long epoch() {
        return epoch;
    }

    /** Ends it without a reply. */
    final void fail(Failure cause) {
        if (over.compareAndSet(false, true)) {
            failed(cause, "");
        }
    }

    @Override
    public final void complete() {
        if (!over.compareAndSet(false, true)) {
            return;
        }
        PipelinedConnection sentOn = connection;
        try {
            if (hasError()) {
                failed(Request.failureOf(getError()), getError());
            } else {
                answered();
            }
        } finally {
            if (sentOn != null) {
                sentOn.answered(this);
            }
        }
    }

    @Override
    public final boolean completeExceptionally(Throwable throwable) {
        if (!over.compareAndSet(false, true)) {
            return false;
        }
        PipelinedConnection sentOn = connection;
        try {
            failed(
                    throwable instanceof UnsupportedOperationException ? Failure.ERROR : Failure.DISCONNECTED,
                    hasError() ? getError() : "");
        } finally {
            if (sentOn != null) {
                sentOn.unanswered(this);
            }
        }
        return true;
    }

    @Override
    public final void cancel() {
        fail(Failure.DISCONNECTED);
    }

    @Override
    public final void encode(ByteBuf to) {
        PipelinedConnection sentOn = connection;
        write(to, sentOn != null && sentOn.hasGetex());
    }

    @Override
    public final CommandOutput<byte[], byte[], Object> getOutput() {
        return this;
    }

    @Override
    public final void setOutput(CommandOutput<byte[], byte[], Object> output) {
        throw new UnsupportedOperationException("it is its own output");
    }

    @Override
    public final CommandArgs<byte[], byte[]> getArgs() {
        return new CommandArgs<>(ByteArrayCodec.INSTANCE);
    }

    @Override
    public final ProtocolKeyword getType() {
        return type;
    }

    @Override
    public final boolean isCancelled() {
        return false;
    }

    @Override
    public final boolean isDone() {
        return over.get();
    }

    /** The type only: outputs are logged. */
    @Override
    public final String toString() {
        return type.toString();
    }

    /** Why an error reply came, by its first word. */
    static Failure failureOf(String error) {
        int end = error.indexOf(' ');
        return switch (end < 0 ? error : error.substring(0, end)) {
            case "LOADING", "BUSY", "MASTERDOWN" -> Failure.LOADING;
            case "OOM" -> Failure.OUT_OF_MEMORY;
            case "READONLY", "MISCONF", "NOREPLICAS" -> Failure.READ_ONLY;
            case "NOAUTH", "WRONGPASS", "NOPERM" -> Failure.AUTHENTICATION;
            case "WRONGTYPE" -> Failure.FOREIGN;
            default -> error.contains("AUTH") ? Failure.AUTHENTICATION : Failure.ERROR;
        };
    }

    /** The shortest command, in place of one that must not be written any more. */
    static void writePing(ByteBuf to) {
        Keys.command(to, 1, "PING");
    }

    /** A command on one key that nobody waits for. */
    abstract static class OnKey extends Request {
        private static final int COST = 128;

        private final Keys keys;
        private final BlockHash key;

        OnKey(CommandType type, Keys keys, BlockHash key) {
            super(type, COST);
            this.keys = keys;
            this.key = key;
        }

        final BlockHash key() {
            return key;
        }

        final void writeKey(ByteBuf to) {
            keys.write(to, key);
        }
    }
}
