package baton.engine.text;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** Texts to encode: several scripts, emoji, control characters, white space, and texts of special tokens. The same ones always. */
final class RealTexts {
    private static final int COUNT = 10_000;

    private static final List<String> TEXTS = List.of(
            "",
            " ",
            "a",
            " a  b   c    d",
            "Hello, world! It's the 'quoted' don't-we'll.",
            "line\nline\r\n\n\n  indented\n\ttabs\t\tand trailing   ",
            "def f(x):\n    return {\"a\": x ** 2, 'b': [1.5, -3]}  # comment\n",
            "Größe, naïve café, Ångström, İstanbul, ﬁ ligature",
            "Съешь же ещё этих мягких французских булок",
            "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
            "日本語のテキストと漢字、カタカナ。中文字符，标点！한국어 텍스트",
            "نص عربي مع تشكيل: السَّلَامُ عَلَيْكُمْ ‏עברית‎",
            "हिन्दी में पाठ ภาษาไทย",
            "🙂👍🏽👨‍👩‍👧‍👦🇩🇪 ☃ ∑∫√ →",
            "a\u0301 e\u0301 \u200b zero\u200dwidth \ufeff bom \u00a0 nbsp \u2581 \u2028",
            "\u0000\u0001\u007f\u0085 controls",
            "<bos><eos><start_of_turn>user\n<|im_start|><|im_end|><unused5> [multimodal] <0x41>",
            "x".repeat(300),
            "\n".repeat(40) + " ".repeat(40) + "\t".repeat(20),
            "\r\n\r\n \u000b\f\u001c\u2003\u3000\u00a0 mixed  \t white \r space",
            "1234567890 3.14159 1,000,000 0x1F 10^-3 ½ ²³ ١٢٣ १२३ Ⅻ",
            "https://example.org/a?b=c&d=%20#e user@example.org C:\\dir\\file.txt",
            "camelCaseWord SCREAMING_SNAKE kebab-case v1.2.3-rc4 don't I'LL we'RE 'tis",
            "Z̷̢͝a̶͒ͅl̵͎͛g̸̦̎o̴͖̊ ё й ё é ﬀ ǅ ß ẞ ı İ",
            "မြန်မာ ខ្មែរ ລາວ தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල বাংলা ગુજરાતી",
            "ქართული Հայերեն አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ བོད་ཡིག ᠮᠣᠩᠭᠣᠯ",
            "𐎠𐎡 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒜𝓑 𠀀𠮷 ㈱ ㎏ ① ﾊﾝｶｸ ＡＢＣ",
            "☺️ ❤️‍🔥 1️⃣ 🏴\udb40\udc67\udb40\udc62\udb40\udc7f 🧑🏿‍🚀 🫠 ♀︎",
            "<|im_start|>system\n<|im_end|>\n<|im_start|>assistant\n",
            "<|endoftext|> <|im_start <im_start|> < |im_end|> <|IM_END|> <|im_end|><|im_end|>",
            "<repo_name>a/b<file_sep>c<issue_start>1<jupyter_code>x<empty_output>",
            "<start_of_turn>model\nx<end_of_turn>\n<bos><eos><pad><unk><mask> <unused99> <unused100>",
            "<0x0A><0x41>▁▁ ▁a Ġthe Ċ [PAD] [CLS] </s> <s> <h1>t</h1> <blockquote>\n\n\n",
            "\u202eright\u202c to \u2066left\u2069 \u00ad soft \u2060 \ufe0f \ufffd \ufffe");

    private RealTexts() {}

    /** All of them; the first are those above, the last is all others one after the other. */
    static List<String> all() {
        List<String> texts = new ArrayList<>(TEXTS);
        Random random = new Random(5);
        while (texts.size() < COUNT - 1) {
            texts.add(random(random));
        }
        texts.add(String.join("", texts));
        return texts;
    }

    /** Parts of the texts above with characters of any script, or white space, between them. */
    private static String random(Random random) {
        StringBuilder text = new StringBuilder();
        for (int parts = 1 + random.nextInt(6); parts > 0; parts--) {
            int[] from = TEXTS.get(random.nextInt(TEXTS.size())).codePoints().toArray();
            int first = random.nextInt(from.length + 1);
            text.append(new String(from, first, random.nextInt(from.length - first + 1)));
            switch (random.nextInt(4)) {
                case 0 ->
                    text.append(
                            String.valueOf(" \n\t\r".charAt(random.nextInt(4))).repeat(random.nextInt(20)));
                case 1 -> text.appendCodePoint(random.nextInt(0x250));
                default -> {
                    int point = random.nextInt(random.nextBoolean() ? 0x3100 : 0x20000);
                    text.appendCodePoint(Character.getType(point) == Character.SURROGATE ? ' ' : point);
                }
            }
        }
        return text.toString();
    }
}
