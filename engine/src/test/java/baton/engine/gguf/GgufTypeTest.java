package baton.engine.gguf;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Base64;
import java.util.EnumSet;
import java.util.Set;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Blocks of each type, unpacked as the package gguf does it: {@code make_gguf_blocks.py}. */
class GgufTypeTest {
    @Test
    void blocksOfEachTypeAreUnpackedAsTheReferenceUnpacksThem() throws Exception {
        Set<GgufType> seen = EnumSet.noneOf(GgufType.class);
        try (InputStream json = GgufTypeTest.class.getResourceAsStream("blocks.json")) {
            for (JsonNode each : JsonMapper.builder().build().readTree(json)) {
                GgufType type = GgufType.valueOf(each.path("type").asString());
                int elements = each.path("elements").asInt();
                byte[] packed = Base64.getDecoder().decode(each.path("packed").asString());
                float[] wanted = new float[elements];
                ByteBuffer.wrap(Base64.getDecoder().decode(each.path("unpacked").asString()))
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .asFloatBuffer()
                        .get(wanted);
                assertThat(type.rowBytes(elements)).as("%s", type).isEqualTo(packed.length);
                float[] unpacked = new float[elements];
                type.unpack(packed, elements, unpacked);
                for (int i = 0; i < elements; i++) {
                    // Bits, as a negative zero is another one. MXFP4 has both, the reference makes one of them.
                    float found = type == GgufType.MXFP4 ? unpacked[i] + 0f : unpacked[i];
                    assertThat(Float.floatToRawIntBits(found))
                            .as("%s[%d] is %s, wanted %s", type, i, unpacked[i], wanted[i])
                            .isEqualTo(Float.floatToRawIntBits(wanted[i]));
                }
                seen.add(type);
            }
        }
        assertThat(seen).isEqualTo(EnumSet.allOf(GgufType.class));
    }
}
