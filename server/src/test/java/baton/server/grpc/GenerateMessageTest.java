package baton.server.grpc;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Random;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** Bytes in this test were written by Google's Python package. */
class GenerateMessageTest {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final byte[] REQUEST = HexFormat.of()
            .parseHex("0a0172220d0a0b01ac02f0a204ffffffff0f2d3333333f32101d6666663f28fbffffffffffffffff01"
                    + "3a160d0000803e22070807150000c0bf2a0203043a02612b60feffffffffffffffff01");
    private static final byte[] STRUCT = HexFormat.of()
            .parseHex(
                    "0a100a036269671209119c7500883ce4377e0a070a0162120220010a0e0a0166120911000000000000e03f0a270a036964731220"
                            + "321e0a1832160a0911000000000000f03f0a091100000000000000400a0232000a070a016e120208000a170a016f12122a100a0e0a0178"
                            + "12091100000000000008c00a180a0b72656d6f74655f706f72741209110000000000e0b5400a090a017312041a02c3a9");

    @Test
    void aRequestBecomesTheFieldsOfACompletion() {
        assertThat(GenerateMessage.read(REQUEST, true).toString())
                .isEqualTo(MAPPER.readTree("""
                        {"temperature": 0.7, "output_text": true, "request_id": "r", "prompt": [1, 300, 70000, 4294967295],
                         "top_p": 0.9, "seed": -5, "presence_penalty": 0.25, "logit_bias": {"7": -1.5},
                         "allowed_token_ids": [3, 4], "structured_outputs": {"regex": "a+"}, "priority": -2, "stream": true}
                        """).toString());
    }

    @Test
    void aStructIsReadAndWritten() {
        ObjectNode json = MAPPER.readTree("""
                {"big": 1e300, "b": true, "f": 0.5, "ids": [[1, 2], []], "n": null, "o": {"x": -3}, "remote_port": 5600, "s": "é"}
                """).asObject();
        assertThat(ProtoStruct.read("params", ProtoReader.of("params", STRUCT)).toString())
                .isEqualTo(json.toString());
        assertThat(ProtoStruct.of(json).toBytes()).isEqualTo(STRUCT);
    }

    @Test
    void damagedMessagesAreRefusedWithTheirPath() {
        Random random = new Random(43);
        for (int i = 0; i < 20_000; i++) {
            byte[] damaged = Arrays.copyOf(REQUEST, random.nextInt(REQUEST.length) + 1);
            damaged[random.nextInt(damaged.length)] = (byte) random.nextInt();
            try {
                GenerateMessage.read(damaged, false);
            } catch (ConfigException e) {
                assertThat(e).hasMessageContaining(": is malformed: it ");
            }
        }
    }

    @Test
    void nestedMessagesHaveALimit() {
        ProtoWriter value = new ProtoWriter();
        for (int i = 0; i < 100; i++) {
            value = new ProtoWriter().message(6, new ProtoWriter().message(1, value));
        }
        byte[] nested = new ProtoWriter()
                .message(
                        10,
                        new ProtoWriter().message(3, new ProtoWriter().message(1, new ProtoWriter().message(2, value))))
                .toBytes();
        assertThatThrownBy(() -> GenerateMessage.read(nested, false))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("kv.kv_transfer_params: is malformed");
    }
}
