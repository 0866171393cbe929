package baton.messages;

import java.io.IOException;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;

/** Writes a msgpack message. */
@FunctionalInterface
public interface MsgpackWriter {
    void write(MessageBufferPacker packer) throws IOException;

    /** The bytes of a message. */
    static byte[] bytes(MsgpackWriter message) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            message.write(packer);
            return packer.toByteArray();
        } catch (IOException e) {
            throw new AssertionError("memory takes what is written", e);
        }
    }
}
