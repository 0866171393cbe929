"""Records a running vLLM's answer to a NIXL handshake, as contract tests read it.

    record_handshake.py HOST PORT FILE [PP_RANK TP_RANK]

Asks the side channel of an instance with NixlConnector for one rank and writes a JSON object with the two frames of its answer in
hexadecimal: "payload", a NixlHandshakePayload in msgpack, and "clock". The agent's own metadata (addresses of UCX, long and of one
machine) is cut out: "agent_bytes" is its length, and 4 bytes stand for it. Needs the Python that vLLM is installed in.
"""

import json
import sys

import msgspec
import zmq
from vllm import __version__

host, port, path = sys.argv[1:4]
pp_rank, tp_rank = (int(rank) for rank in (sys.argv[4:6] or ("0", "0")))
socket = zmq.Context.instance().socket(zmq.REQ)
socket.setsockopt(zmq.RCVTIMEO, 10_000)
socket.setsockopt(zmq.LINGER, 0)
socket.connect(f"tcp://{host}:{port}")
socket.send(msgspec.msgpack.encode((b"get_meta_msg", pp_rank, tp_rank)))
payload, clock = socket.recv_multipart()
outer = msgspec.msgpack.decode(payload)
inner = msgspec.msgpack.decode(outer["agent_metadata_bytes"])
agent_bytes = len(inner["agent_metadata"])
inner["agent_metadata"] = b"nixl"
outer["agent_metadata_bytes"] = msgspec.msgpack.encode(inner)
with open(path, "w") as out:
    json.dump(
        {
            "vllm": __version__,
            "question": msgspec.msgpack.encode((b"get_meta_msg", pp_rank, tp_rank)).hex(),
            "payload": msgspec.msgpack.encode(outer).hex(),
            "clock": clock.hex(),
            "agent_bytes": agent_bytes,
        },
        out,
        indent=1,
    )
    out.write("\n")
inner["agent_metadata"] = f"<{agent_bytes} bytes>"
print(outer["compatibility_hash"], inner)
