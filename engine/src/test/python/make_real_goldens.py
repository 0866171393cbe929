"""Writes the results of Hugging Face transformers for texts and prompts with two published models, SmolLM2-135M-Instruct and Gemma 3 270M.

    pip install torch transformers gguf
    mvn -pl engine -am test -Preal -Dtest=RealTokenizersTest -Dsurefire.failIfNoSpecifiedTests=false -Dtests.texts=TEXTS
    python engine/src/test/python/make_real_goldens.py MODELS TEXTS [MODEL INDEX]

MODELS is the directory that BATON_REAL_MODELS names, TEXTS the file that the test writes. With a model and an index it prints instead
what the digest of that text is made of. Made with transformers 5.19.0, tokenizers 0.23.3 and torch 2.13.0 on a CPU.

baton/engine/text/real/MODEL.crc32: for each text a CRC-32, little endian, of its token ids, their text and a chat that begins with it.
baton/engine/model/real/MODEL.json: for each prompt its token ids, a greedy continuation in fp32 and the greatest logits of each step
("top"); the greatest of the first step with the weights of the GGUF file ("gguf").
"""

import json
import pathlib
import struct
import sys
import zlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent
TARGET = HERE.parent / "resources/baton/engine"
MODELS = {"smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3-270m": "gemma-3-270m.Q4_K_M.gguf"}
ROLES = ["system", "user", "assistant"]
LONG = 2000
STEPS = 4
TOP = 8


def chat(texts, index):
    messages = [
        {"role": ROLES[(index + turn) % len(ROLES)], "content": texts[(index + turn) % len(texts)]}
        for turn in range(1 + index % 4)
    ]
    return messages, index % 2 == 0


def described(tokenizer, texts, index):
    """The lines to digest."""
    ids = tokenizer.encode(texts[index])
    plain = tokenizer.encode(texts[index], add_special_tokens=False)
    lines = [",".join(map(str, each)) for each in (ids, plain)]
    lines += [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False)]
    if tokenizer.chat_template:
        messages, generation = chat(texts, index)
        lines.append(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation))
    return "\n".join(lines)


def digests(tokenizer, texts):
    return b"".join(
        struct.pack("<I", zlib.crc32(described(tokenizer, texts, index).encode())) for index in range(len(texts))
    )


def prompts(tokenizer):
    """Ids of the prompts by name. The last is all of them one after the other, cut."""
    found = {}
    for prompt in json.loads((HERE / "real_prompts.json").read_text()):
        if "text" in prompt:
            found[prompt["name"]] = tokenizer.encode(prompt["text"])
        elif tokenizer.chat_template:
            rendered = tokenizer.apply_chat_template(prompt["chat"], tokenize=False, add_generation_prompt=True)
            found[prompt["name"]] = tokenizer.encode(rendered, add_special_tokens=False)
        else:
            turns = "".join(f"{each['role']}: {each['content']}\n" for each in prompt["chat"])
            found[prompt["name"]] = tokenizer.encode(turns + "assistant:")
    joined = [id for ids in found.values() for id in ids]
    found["long"] = (joined * (LONG // len(joined) + 1))[:LONG]
    return found


def top(logits):
    values, ids = torch.topk(logits, TOP)
    return [[int(id), round(float(value), 6)] for id, value in zip(ids, values)]


@torch.no_grad()
def continued(model, ids, steps):
    """The greedy continuation and the greatest logits of each step."""
    tokens, tops = [], []
    out = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    while True:
        logits = out.logits[0, -1]
        tokens.append(int(logits.argmax()))
        tops.append(top(logits))
        if len(tokens) == steps:
            return tokens, tops
        out = model(torch.tensor([tokens[-1:]]), past_key_values=out.past_key_values, use_cache=True)


def main():
    directory = pathlib.Path(sys.argv[1])
    texts = json.loads(pathlib.Path(sys.argv[2]).read_text())
    if len(sys.argv) > 3:
        print(described(AutoTokenizer.from_pretrained(directory / sys.argv[3]), texts, int(sys.argv[4])))
        return
    for name, file in MODELS.items():
        tokenizer = AutoTokenizer.from_pretrained(directory / name)
        (TARGET / f"text/real/{name}.crc32").write_bytes(digests(tokenizer, texts))
        model = AutoModelForCausalLM.from_pretrained(directory / name, dtype=torch.float32)
        rows = []
        for prompt, ids in prompts(tokenizer).items():
            output, tops = continued(model, ids, STEPS)
            rows.append({"name": prompt, "prompt_ids": ids, "output_ids": output, "top": tops})
        model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32)
        for row in rows:
            row["gguf"] = continued(model, row["prompt_ids"], 1)[1][0]
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        (TARGET / f"model/real/{name}.json").write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
