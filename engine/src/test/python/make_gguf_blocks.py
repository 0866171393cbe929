"""Makes src/test/resources/baton/engine/gguf/blocks.json: random blocks of each type of GGUF tensors that is supported, and the elements
that the package gguf unpacks them to, both in base64, the elements as little-endian fp32.

    pip install gguf
    python engine/src/test/python/make_gguf_blocks.py

Made with gguf 0.19.0. Tests read only its files.
"""

import base64
import json
import pathlib

import numpy
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

TARGET = pathlib.Path(__file__).parents[1] / "resources/baton/engine/gguf/blocks.json"

# Where the fp16 numbers of a block are, which must be finite.
HALVES = dict(Q4_0=[0], Q4_1=[0, 2], Q5_0=[0], Q5_1=[0, 2], Q8_0=[0], Q4_K=[0, 2], Q5_K=[0, 2], Q6_K=[208], MXFP4=[])


def blocks(name, random):
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    count = 3 if elements > 1 else 40
    if elements == 1:
        floats = random.normal(size=count).astype(numpy.float32)
        packed = {"F32": floats, "F16": floats.astype(numpy.float16), "BF16": floats.view(numpy.uint16)[1::2]}[name]
        packed = numpy.ascontiguousarray(packed).view(numpy.uint8).reshape(1, -1)
    else:
        packed = random.integers(0, 256, size=(count, size), dtype=numpy.uint8)
        for at in HALVES[name]:
            packed[:, at : at + 2] = random.normal(size=(count, 1)).astype(numpy.float16).view(numpy.uint8)
        if name == "MXFP4":
            # Exponents, of which the highest make infinities.
            packed[:, 0] %= 250
        packed = packed.reshape(1, -1)
    unpacked = dequantize(packed, kind).astype(numpy.float32).reshape(-1)
    assert numpy.isfinite(unpacked).all()
    return dict(type=name, elements=len(unpacked), packed=text(packed), unpacked=text(unpacked))


def text(array):
    return base64.b64encode(array.tobytes()).decode()


random = numpy.random.default_rng(7)
TARGET.parent.mkdir(parents=True, exist_ok=True)
names = ["F32", "F16", "BF16", *HALVES]
TARGET.write_text(json.dumps([blocks(name, random) for name in names], indent=1) + "\n")
