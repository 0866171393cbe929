package baton.kv;

import java.util.Arrays;

/** Writes values into a buffer as Python does before it hashes them. Not thread-safe. */
abstract class HashEncoding {
    byte[] bytes = new byte[256];
    int length;

    static HashEncoding of(HashAlgorithm algorithm) {
        return switch (algorithm) {
            case SHA256 -> new Pickle();
            case SHA256_CBOR -> new Cbor();
        };
    }

    abstract void begin();

    abstract void beginTuple(int size);

    abstract void endTuple(int size);

    abstract void hash(BlockHash hash);

    abstract void integer(int value);

    /** An integer from 0 to 2^64 - 1. */
    abstract void unsigned(long value);

    abstract void emptyTuple();

    abstract void text(byte[] utf8);

    abstract void none();

    abstract void end();

    final void put(int value) {
        if (length == bytes.length) {
            bytes = Arrays.copyOf(bytes, 2 * length);
        }
        bytes[length++] = (byte) value;
    }

    final void put(byte[] values) {
        if (bytes.length - length < values.length) {
            bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, length + values.length));
        }
        System.arraycopy(values, 0, bytes, length, values.length);
        length += values.length;
    }

    final void bigEndian(long value, int count) {
        for (int i = count - 1; i >= 0; i--) {
            put((int) (value >>> 8 * i));
        }
    }

    final void littleEndian(long value, int count) {
        for (int i = 0; i < count; i++) {
            put((int) (value >>> 8 * i));
        }
    }

    final void digest(BlockHash hash) {
        bigEndian(hash.a(), 8);
        bigEndian(hash.b(), 8);
        bigEndian(hash.c(), 8);
        bigEndian(hash.d(), 8);
    }

    /** Python's {@code pickle.dumps(value, protocol=5)}: Lib/pickletools.py describes the opcodes. */
    private static final class Pickle extends HashEncoding {
        private static final int FRAME_AT = 2;
        private static final int BODY_AT = FRAME_AT + 9;
        private static final int LEAST_FRAME = 4;
        private static final int MEMOIZE = 0x94;

        @Override
        void begin() {
            length = 0;
            put(0x80);
            put(5);
            put(0x95);
            littleEndian(0, 8);
        }

        @Override
        void beginTuple(int size) {
            if (size > 3) {
                put('(');
            }
        }

        @Override
        void endTuple(int size) {
            if (size > 3) {
                put('t');
            } else {
                put(0x84 + size);
            }
            put(MEMOIZE);
        }

        @Override
        void hash(BlockHash hash) {
            put('C');
            put(BlockHash.BYTES);
            digest(hash);
            put(MEMOIZE);
        }

        @Override
        void integer(int value) {
            if (value >= 0 && value < 1 << 8) {
                put('K');
                put(value);
            } else if (value >= 0 && value < 1 << 16) {
                put('M');
                littleEndian(value, 2);
            } else {
                put('J');
                littleEndian(value, 4);
            }
        }

        /** Above the range of an int as the shortest number in two's complement that begins with a byte for the sign. */
        @Override
        void unsigned(long value) {
            if (value >= 0 && value <= Integer.MAX_VALUE) {
                integer((int) value);
                return;
            }
            int bits = Long.SIZE - Long.numberOfLeadingZeros(value);
            int count = bits / 8 + 1;
            put(0x8a);
            put(count);
            littleEndian(value, Math.min(count, 8));
            if (count > 8) {
                put(0);
            }
        }

        @Override
        void emptyTuple() {
            put(')');
        }

        @Override
        void text(byte[] utf8) {
            if (utf8.length < 1 << 8) {
                put(0x8c);
                put(utf8.length);
            } else {
                put('X');
                littleEndian(utf8.length, 4);
            }
            put(utf8);
            put(MEMOIZE);
        }

        @Override
        void none() {
            put('N');
        }

        @Override
        void end() {
            put('.');
            int body = length - BODY_AT;
            if (body < LEAST_FRAME) {
                throw new IllegalStateException("body=" + body + " bytes have no frame");
            }
            for (int i = 0; i < 8; i++) {
                bytes[FRAME_AT + 1 + i] = (byte) ((long) body >>> 8 * i);
            }
        }
    }

    /** RFC 8949, in its core deterministic form. */
    private static final class Cbor extends HashEncoding {
        private static final int UNSIGNED = 0;
        private static final int NEGATIVE = 1;
        private static final int BYTE_STRING = 2;
        private static final int TEXT_STRING = 3;
        private static final int ARRAY = 4;
        private static final int NULL = 0xf6;

        @Override
        void begin() {
            length = 0;
        }

        private void head(int type, long argument) {
            if (argument < 0) {
                // Unsigned.
                put(type << 5 | 27);
                bigEndian(argument, 8);
            } else if (argument < 24) {
                put(type << 5 | (int) argument);
            } else if (argument < 1 << 8) {
                put(type << 5 | 24);
                put((int) argument);
            } else if (argument < 1 << 16) {
                put(type << 5 | 25);
                bigEndian(argument, 2);
            } else if (argument < 1L << 32) {
                put(type << 5 | 26);
                bigEndian(argument, 4);
            } else {
                put(type << 5 | 27);
                bigEndian(argument, 8);
            }
        }

        @Override
        void beginTuple(int size) {
            head(ARRAY, size);
        }

        @Override
        void endTuple(int size) {}

        @Override
        void hash(BlockHash hash) {
            head(BYTE_STRING, BlockHash.BYTES);
            digest(hash);
        }

        @Override
        void integer(int value) {
            if (value >= 0) {
                head(UNSIGNED, value);
            } else {
                head(NEGATIVE, -1 - value);
            }
        }

        @Override
        void unsigned(long value) {
            head(UNSIGNED, value);
        }

        @Override
        void emptyTuple() {
            head(ARRAY, 0);
        }

        @Override
        void text(byte[] utf8) {
            head(TEXT_STRING, utf8.length);
            put(utf8);
        }

        @Override
        void none() {
            put(NULL);
        }

        @Override
        void end() {}
    }
}
