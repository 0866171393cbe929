package baton.store.lm;

import baton.store.remote.Failure;
import io.netty.channel.Channel;
import java.util.Optional;

/**
 * What is sent on a connection at once, and its replies. Everything but the constructor runs on the event loop of the connection that it was
 * given to. It ends once: then it uses none of its operation's memory.
 */
abstract class LmRequest {
    private final long cost;
    private int repliesLeft;
    private boolean sent;
    private boolean abandoned;
    private boolean over;
    private boolean writing;
    private boolean ended;

    /** @param cost bytes sent or replied, whichever is more */
    LmRequest(long cost) {
        this.cost = cost;
    }

    final long cost() {
        return cost;
    }

    /**
     * Writes it, without a flush.
     *
     * @param additions of the server
     * @return replies that it will have, at least one
     */
    protected abstract int write(Channel to, Additions additions);

    /**
     * The numbers of a reply.
     *
     * @param index of the reply
     * @return where what follows it goes, of just as many bytes; empty: it is not wanted
     */
    protected abstract Optional<Destination> reply(int index, LmReply reply);

    /** What follows a reply is in place. */
    protected void received(int index) {}

    /** It is over: all replies have come, or none will. */
    protected abstract void ended();

    /** There are no more replies. */
    protected abstract void failed(Failure cause);

    /** Bytes of a reply that are not worth to be read with what is behind them. */
    protected int headBytes() {
        return 0;
    }

    /** Whether the server holds a value for it once its reply has come, which is to be freed when the request is over. */
    protected boolean holds() {
        return false;
    }

    final void send(Channel to, Additions additions) {
        sent = true;
        repliesLeft = write(to, additions);
    }

    /** The network uses its memory until {@link #written}. */
    protected final void writing() {
        writing = true;
    }

    protected final void written() {
        writing = false;
        endIfOver();
    }

    final boolean isAbandoned() {
        return abandoned;
    }

    /** Whether there is one more reply to come, after one has. */
    final boolean isAnswered() {
        repliesLeft--;
        if (repliesLeft == 0) {
            over = true;
            endIfOver();
        }
        return repliesLeft == 0;
    }

    final int repliesLeft() {
        return repliesLeft;
    }

    final void fail(Failure cause) {
        if (over) {
            return;
        }
        over = true;
        if (!abandoned) {
            failed(cause);
        }
        endIfOver();
    }

    /** Nobody waits for it: its memory is not used any more, but by what is being sent. */
    final void abandon() {
        abandoned = true;
        endIfOver();
    }

    /** Whether it was abandoned before it was sent. */
    final boolean isUnwanted() {
        return abandoned && !sent;
    }

    private void endIfOver() {
        if ((over || abandoned) && !writing && !ended) {
            ended = true;
            ended();
        }
    }
}
