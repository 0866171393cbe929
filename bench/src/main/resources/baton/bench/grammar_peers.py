"""Fills masks of xgrammar and llguidance along given texts, and prints one JSON object a line.

Reads {"model": directory, "size": ids, "schemas": {name: text}, "texts": {name: [[id]]}} from standard input.
A text that an engine refuses ends there, and counts as refused.
"""

import json
import sys
import time

from transformers import AutoTokenizer


def measure(name, engine, start, fill, accept, texts):
    passes = []
    refused = 0
    for _ in range(2):
        times = []
        refused = 0
        for text in texts:
            matcher = start()
            for token in text:
                begin = time.perf_counter_ns()
                fill(matcher)
                times.append((time.perf_counter_ns() - begin) / 1e9)
                if not accept(matcher, token):
                    refused += 1
                    break
        passes.append(times)
    print(json.dumps({"schema": name, "engine": engine, "refused": refused, "first": passes[0], "again": passes[1]}))


def xgrammar(given, tokenizer):
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=given["size"])
    mask = xgrammar.allocate_token_bitmask(1, given["size"])
    for name, schema in given["schemas"].items():
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        begin = time.perf_counter()
        grammar = compiler.compile_json_schema(schema, any_whitespace=True)
        print(json.dumps({"schema": name, "engine": "xgrammar", "compile": time.perf_counter() - begin}))
        measure(
            name,
            "xgrammar",
            lambda: xgrammar.GrammarMatcher(grammar),
            lambda matcher: matcher.fill_next_token_bitmask(mask, 0),
            lambda matcher, token: matcher.accept_token(token),
            given["texts"][name],
        )


def llguidance(given, tokenizer):
    import llguidance
    import llguidance.hf
    import llguidance.numpy

    vocabulary = llguidance.hf.from_tokenizer(tokenizer, n_vocab=given["size"])
    mask = llguidance.numpy.allocate_token_bitmask(1, given["size"])
    for name, schema in given["schemas"].items():
        begin = time.perf_counter()
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        llguidance.LLMatcher(vocabulary, grammar)
        print(json.dumps({"schema": name, "engine": "llguidance", "compile": time.perf_counter() - begin}))
        measure(
            name,
            "llguidance",
            lambda: llguidance.LLMatcher(vocabulary, grammar),
            lambda matcher: llguidance.numpy.fill_next_token_bitmask(matcher, mask, 0),
            lambda matcher, token: matcher.consume_token(token),
            given["texts"][name],
        )


def main():
    given = json.load(sys.stdin)
    tokenizer = AutoTokenizer.from_pretrained(given["model"])
    for engine in (xgrammar, llguidance):
        try:
            engine(given, tokenizer)
        except ImportError as missing:
            print(missing, file=sys.stderr)


main()
