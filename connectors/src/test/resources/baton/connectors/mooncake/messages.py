"""Decodes messages with vLLM's classes, prints them, and encodes them again."""

import sys

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import (
    MooncakeXferMetadata,
    MooncakeXferResponse,
    _align_transfer_regions,
    _expand_transfer_regions,
)

has_layout_id = "layout_id" in MooncakeXferMetadata.__struct_fields__
print("layout_id", has_layout_id)
encoder = msgspec.msgpack.Encoder()
for line in sys.stdin:
    kind, text = line.split()
    message = bytes.fromhex(text)
    if kind == "request":
        read = msgspec.msgpack.decode(message, type=MooncakeXferMetadata)
        # Without regions, which the reader remembers, there is nothing to align.
        regions = _expand_transfer_regions(
            read.kv_caches_base_addr,
            read.block_lens,
            read.kv_block_lens,
            read.registered_layer_names,
            read.registered_layer_indices,
            read.registered_group_indices,
            [tuple(groups) for groups in read.registered_shared_group_ids],
            read.registered_row_offsets,
        )
        _, _, error = _align_transfer_regions(regions, regions)
        assert error is None, error
    elif not has_layout_id and msgspec.msgpack.decode(message)["status"] == 3:
        continue
    else:
        read = msgspec.msgpack.decode(message, type=MooncakeXferResponse)
    print("again " + encoder.encode(read).hex())
