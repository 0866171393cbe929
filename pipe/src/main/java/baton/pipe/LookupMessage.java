package baton.pipe;

import baton.kv.Deadline;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;

/**
 * A message between the ends of a lookup buffer: a tensor of int64, {@code [what, number, tokens..., roi...]}. Requests have
 * ascending numbers; answers may be in any order. After a {@link What#FOUND} follow the entry's key, value and hidden states.
 *
 * @param number of the request
 * @param tokens of the lookup, or of the entry that was found; empty for other messages
 * @param roi of {@code tokens}
 */
record LookupMessage(What what, long number, int[] tokens, boolean[] roi) {
    enum What {
        /** Asks for an entry. */
        SELECT(1),
        /** Cancels a request. */
        CANCEL(2),
        FOUND(3),
        /** The entry will never be inserted. */
        NEVER(4),
        /** Too many requests wait. */
        REFUSED(5);

        private final int code;

        What(int code) {
            this.code = code;
        }
    }

    static LookupMessage of(What what, long number) {
        return new LookupMessage(what, number, new int[0], new boolean[0]);
    }

    Tensor encode() {
        Tensor tensor = TensorMemory.HOST.allocate(Tensor.Type.I64, List.of(2 + 2L * tokens.length));
        MemorySegment data = tensor.data().host();
        data.setAtIndex(ValueLayout.JAVA_LONG, 0, what.code);
        data.setAtIndex(ValueLayout.JAVA_LONG, 1, number);
        for (int i = 0; i < tokens.length; i++) {
            data.setAtIndex(ValueLayout.JAVA_LONG, 2 + i, tokens[i]);
            data.setAtIndex(ValueLayout.JAVA_LONG, 2 + tokens.length + i, roi[i] ? 1 : 0);
        }
        return tensor;
    }

    /**
     * Receives a message; waits until the pipe ends when the peer is silent.
     *
     * @throws PipeException if the tensor is no such message
     */
    static LookupMessage receive(Pipe pipe) throws PipeException {
        // Without a deadline: the pipe ends when the peer is silent, or the lookup buffer is closed.
        try (Tensor tensor = pipe.receive(TensorMemory.HOST, Deadline.LONGEST)) {
            return decode(tensor);
        }
    }

    private static LookupMessage decode(Tensor tensor) throws PipeException {
        if (tensor.type() != Tensor.Type.I64 || tensor.shape().size() != 1) {
            throw new PipeException(
                    "a lookup buffer's message is %s%s".formatted(tensor.type().torchName(), tensor.shape()));
        }
        long count = tensor.shape().getFirst();
        if (count < 2 || count % 2 != 0 || count > Integer.MAX_VALUE) {
            throw new PipeException("a lookup buffer's message has " + count + " numbers");
        }
        MemorySegment data = tensor.data().host();
        long code = data.getAtIndex(ValueLayout.JAVA_LONG, 0);
        int length = (int) (count - 2) / 2;
        int[] tokens = new int[length];
        boolean[] roi = new boolean[length];
        for (int i = 0; i < length; i++) {
            long token = data.getAtIndex(ValueLayout.JAVA_LONG, 2 + i);
            long of = data.getAtIndex(ValueLayout.JAVA_LONG, 2 + length + i);
            if (token != (int) token || of < 0 || of > 1) {
                throw new PipeException("a lookup buffer's message has token %d with roi %d".formatted(token, of));
            }
            tokens[i] = (int) token;
            roi[i] = of == 1;
        }
        for (What what : What.values()) {
            if (what.code == code) {
                return new LookupMessage(what, data.getAtIndex(ValueLayout.JAVA_LONG, 1), tokens, roi);
            }
        }
        throw new PipeException("a lookup buffer's message is of unknown kind " + code);
    }
}
