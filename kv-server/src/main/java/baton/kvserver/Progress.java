package baton.kvserver;

/** Whether a stream gets on: in each window of time by so many bytes, or by all that was left when the window began. */
final class Progress {
    private boolean open;
    private long since;
    private long done;
    private long left;

    /**
     * Looks once more.
     *
     * @param now nanoseconds
     * @param doneNow bytes of the stream so far
     * @param leftNow bytes that are still to come; 0: it need not get on
     * @param window nanoseconds
     * @param least bytes in a window
     * @return whether it has got on too slowly
     */
    boolean isStuck(long now, long doneNow, long leftNow, long window, long least) {
        if (leftNow == 0) {
            open = false;
            return false;
        }
        if (!open) {
            begin(now, doneNow, leftNow);
            return false;
        }
        if (now - since < window) {
            return false;
        }
        if (doneNow - done < Math.min(left, least)) {
            return true;
        }
        begin(now, doneNow, leftNow);
        return false;
    }

    private void begin(long now, long doneNow, long leftNow) {
        open = true;
        since = now;
        done = doneNow;
        left = leftNow;
    }
}
