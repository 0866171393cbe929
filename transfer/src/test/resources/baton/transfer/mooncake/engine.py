"""A Mooncake engine with one buffer. Reads commands from standard input, a JSON array on each line, and answers each with JSON.

Arguments: the engine's name, the metadata server, bytes of the buffer.
"""

import ctypes
import hashlib
import json
import sys

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

name, metadata, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
out = sys.stdout
memory = ctypes.create_string_buffer(size)
base = ctypes.addressof(memory)
engine = TransferEngine()


def answer(value):
    out.write("answer " + json.dumps(value) + "\n")
    out.flush()


def fill(seed):
    block = b""
    while len(block) < 1 << 16:
        block += hashlib.sha256(b"%d %d" % (seed, len(block))).digest()
    for at in range(0, size, len(block)):
        piece = block[: min(len(block), size - at)]
        ctypes.memmove(base + at, piece, len(piece))
    return 0


def digest(offset, length):
    return hashlib.sha256(ctypes.string_at(base + offset, length)).hexdigest()


def write_notifying(target, offset, remote, length, sender, text):
    notify = TransferNotify(sender, text)
    return engine.transfer_sync(target, base + offset, remote, length, TransferOpcode.Write, notify)


def batch(call):
    def run(target, offsets, remotes, lengths):
        return call(target, [base + offset for offset in offsets], remotes, lengths)

    return run


commands = {
    "fill": fill,
    "digest": digest,
    "write": lambda target, offset, remote, length: engine.transfer_sync_write(target, base + offset, remote, length),
    "read": lambda target, offset, remote, length: engine.transfer_sync_read(target, base + offset, remote, length),
    "batch_write": batch(engine.batch_transfer_sync_write),
    "batch_read": batch(engine.batch_transfer_sync_read),
    "write_notifying": write_notifying,
    "notifies": lambda: [[each.name, each.msg] for each in engine.get_notifies()],
    "probe": lambda target: engine.send_probe(target),
    "unregister": lambda: engine.unregister_memory(base),
}

status = engine.initialize(name, metadata, "tcp", "")
if status == 0:
    status = engine.register_memory(base, size)
answer([status, engine.get_rpc_port() if status == 0 else 0, base])
for line in sys.stdin:
    command, *arguments = json.loads(line)
    answer(commands[command](*arguments))
