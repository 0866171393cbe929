"""Makes src/test/resources/baton/engine/text/sentencepiece.gguf, the vocabulary of a SentencePiece model as files of Llama 2 have it (merges by
scores, bytes for characters that it lacks, a space in front), and sentencepiece.json: texts, their ids by the package sentencepiece, and the
texts that it makes of the ids.

    pip install gguf sentencepiece
    python engine/src/test/python/make_sentencepiece_gguf.py

Made with gguf 0.19.0 and sentencepiece 0.2.3. Tests read only its files.
"""

import io
import json
import pathlib
import random

import sentencepiece
from gguf import GGUFWriter, TokenType

TARGET = pathlib.Path(__file__).parents[1] / "resources/baton/engine/text"
DOCS = pathlib.Path(__file__).parents[4] / "docs"

TEXTS = [
    "",
    " ",
    "a",
    " a  b   c    d ",
    "Hello, world! It's the 'quoted' don't-we'll.",
    "line\nline\r\n\n\n  indented\n\ttabs\t\tand trailing   ",
    'def f(x):\n    return {"a": x ** 2, \'b\': [1.5, -3]}  # comment\n',
    "Größe, naïve café, Ångström, İstanbul, ﬁ ligature",
    "Съешь же ещё этих мягких французских булок",
    "日本語のテキストと漢字。한국어 텍스트",
    "نص عربي مع تشكيل: السَّلَامُ עברית",
    "हिन्दी में पाठ ภาษาไทย",
    "🙂👍🏽👨‍👩‍👧‍👦🇩🇪 ☃ ∑∫√ →",
    "a\u0301 \u200b zero\u200dwidth \ufeff \u00a0 nbsp \u2581 \u2028",
    "\u0001\u007f\u0085 controls",
    "x" * 100,
    "\n" * 10 + " " * 20 + "\t" * 5,
    "1234567890 3.14159 1,000,000 0x1F 10^-3 ½ ²³",
    "<0x0A> <0x41> [INST] the KV cache of a block [/INST]",
    "the the the  the\nthe block blocks the KV cache's tokens",
]


def train():
    model = io.BytesIO()
    lines = [line for page in ("serving.md", "routing.md", "glossary.md") for line in (DOCS / page).read_text().splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        character_coverage=0.999,
        normalization_rule_name="identity",
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind(model, i):
    if model.is_unknown(i):
        return TokenType.UNKNOWN
    if model.is_control(i):
        return TokenType.CONTROL
    if model.is_byte(i):
        return TokenType.BYTE
    return TokenType.NORMAL


def main():
    model = train()
    ids = range(model.get_piece_size())
    writer = GGUFWriter(TARGET / "sentencepiece.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([model.id_to_piece(i) for i in ids])
    writer.add_token_scores([model.get_score(i) for i in ids])
    writer.add_token_types([int(kind(model, i)) for i in ids])
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    chosen = random.Random(1)
    texts = TEXTS + ["".join(chosen.choice(TEXTS)[chosen.randrange(9) :][: chosen.randrange(30)] for _ in range(4)) for _ in range(150)]
    cases = [dict(text=text, ids=[model.bos_id(), *model.encode(text)], decoded=model.decode(model.encode(text))) for text in texts]
    lines = ",\n".join(json.dumps(case) for case in cases)
    (TARGET / "sentencepiece.json").write_text(f"[\n{lines}\n]\n")


main()
