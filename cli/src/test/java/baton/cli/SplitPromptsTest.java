package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.node.ObjectNode;

/** Prompts of which the prefill instance computes a half and the decode instance the rest, in processes of their own. */
@Tag("thorough")
class SplitPromptsTest {
    private static final int TOKENS = 8;
    private static final int LENGTH = 320;
    private static final int PROMPTS = 10;
    private static final int BLOCK = 16;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @Test
    void blocksInMemory() throws Exception {
        check(
                "blocks",
                LENGTH / 2,
                INSTANCES.serveBlocks("nixl-prefill", "NixlConnector", "kv_producer"),
                INSTANCES.serveBlocks("nixl-decode", "NixlConnector", "kv_consumer"));
    }

    /** Files have none of the block with the prompt's last token. */
    @Test
    void blocksInFiles() throws Exception {
        Path shared = INSTANCES.directory("shared");
        check(
                "files",
                LENGTH / 2 - BLOCK,
                INSTANCES.serve("files-prefill", "kv_producer", shared, "--dtype", "float32"),
                INSTANCES.serve("files-decode", "kv_consumer", shared, "--dtype", "float32"));
    }

    private static void check(String name, int handedOver, Instance prefill, Instance decode) throws Exception {
        Instance router = INSTANCES.route(
                "router-of-" + name, List.of(prefill), List.of(decode), "--flow", "auto", "--split-prompts", "0.5");
        Random random = new Random(1);
        for (int i = 0; i < PROMPTS; i++) {
            int[] prompt = random.ints(LENGTH, 5, 250).toArray();
            Prompts atPrefill = prefill.prompts();
            Prompts atDecode = decode.prompts();
            Reply split = router.complete(prompt, TOKENS);
            assertThat(prefill.prompts().since(atPrefill).computed()).isEqualTo(LENGTH / 2);
            Prompts taken = decode.prompts().since(atDecode);
            assertThat(taken.transferred()).isEqualTo(handedOver);
            assertThat(taken.computed()).isEqualTo(LENGTH - handedOver);
            // The prefill instance computes all of it, of which it has the first half.
            assertThat(split.tokenIds())
                    .isEqualTo(prefill.complete(prompt, TOKENS).tokenIds());
        }
        // A chat: only the prefill instance makes its tokens.
        ObjectNode chat =
                Instances.JSON.createObjectNode().put("max_tokens", TOKENS).put("temperature", 0);
        chat.putArray("messages")
                .addObject()
                .put("role", "user")
                .put("content", "Which town is north of the harbour? ".repeat(8));
        Prompts before = decode.prompts();
        Reply answer = router.post("/v1/chat/completions", chat.toString());
        assertThat(decode.prompts().since(before).transferred()).isPositive();
        assertThat(answer.choice().at("/message/content"))
                .isEqualTo(prefill.post("/v1/chat/completions", chat.toString())
                        .choice()
                        .at("/message/content"));
        assertThat(router.metric("baton:router_prompts_split_total", "")).isEqualTo(PROMPTS + 1);
    }
}
