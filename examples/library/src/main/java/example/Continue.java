package example;

import baton.engine.SamplingParams;
import baton.engine.local.LLM;
import java.nio.file.Path;

class Continue {
    static void main(String[] args) throws Exception {
        try (LLM llm = LLM.load(Path.of(args[0]))) {
            IO.println(llm.generate("The home of Odile is in Eastvale. The home of Odile is in", SamplingParams.greedy(4)).text());
        }
    }
}
