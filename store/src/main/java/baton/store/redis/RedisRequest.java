package baton.store.redis;

import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.RemoteRequest;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import java.util.Optional;

/** One command and its one reply. The reply's parts come one after the other; a part of an unexpected kind is an error. */
abstract class RedisRequest extends RemoteRequest {
    private static final int COMMAND_BYTES = 256;

    private boolean isUnexpected;

    /** A command that no operation waits for. */
    RedisRequest(long cost) {
        super(cost);
    }

    /**
     * @param cost bytes of command or reply, whichever is more
     * @param keys that it is for
     */
    RedisRequest(RedisOperation of, long cost, int keys) {
        super(of, cost, keys);
    }

    /** Writes the command. */
    protected abstract void write(ByteBuf to, boolean hasGetex);

    /** Writes the command to a channel, without a flush. */
    protected void write(Channel to, boolean hasGetex) {
        ByteBuf command = to.alloc().directBuffer(COMMAND_BYTES);
        write(command, hasGetex);
        var _ = to.write(command, to.voidPromise());
    }

    /** The bytes of a string that are read first, so that the rest can be read directly into its place; 0: no such limit. */
    protected int headBytes() {
        return 0;
    }

    /**
     * A string comes.
     *
     * @param index of the part
     * @return where its first bytes go; empty: it is not wanted
     */
    protected Optional<Destination> string(int index, int bytes) {
        isUnexpected = true;
        return Optional.empty();
    }

    /** A string is in its place. */
    protected void received(int index) {}

    /** A string that is not there. */
    protected void missing(int index) {
        isUnexpected = true;
    }

    protected void number(long value) {
        isUnexpected = true;
    }

    /** {@code OK}, or another word. */
    protected void word() {
        isUnexpected = true;
    }

    /** The reply is complete, and no error. */
    protected abstract void answered();

    /**
     * There is an error in place of the reply.
     *
     * @param error the server's text; empty if the reply is of another kind than the command's
     */
    protected abstract void refused(Failure cause, String error);

    /** Called for each reply that is no error. */
    final void complete() {
        if (isUnexpected) {
            refused(Failure.ERROR, "");
        } else if (!isAbandoned()) {
            answered();
        }
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

    /** A request of an operation. */
    abstract static class Part extends RedisRequest {
        private final RedisOperation of;

        Part(RedisOperation of, long cost, int keys) {
            super(of, cost, keys);
            this.of = of;
        }

        /** Applies the reply to the operation. */
        protected abstract void apply();

        @Override
        protected final void answered() {
            of.answered();
            apply();
        }

        /** Whether an error has been dealt with otherwise, by another request. */
        protected boolean retried(Failure cause) {
            return false;
        }

        @Override
        protected final void refused(Failure cause, String error) {
            if (!retried(cause)) {
                of.redis.refused(cause, error);
                if (!isAbandoned()) {
                    failed(cause);
                }
            }
        }
    }

    /** A command on one key that no operation waits for. */
    abstract static class OnKey extends RedisRequest {
        private static final int COST = 128;

        private final RedisClient redis;

        OnKey(RedisClient redis) {
            super(COST);
            this.redis = redis;
        }

        @Override
        protected void number(long value) {}

        @Override
        protected void answered() {}

        @Override
        protected final void refused(Failure cause, String error) {
            redis.refused(cause, error);
        }
    }
}
