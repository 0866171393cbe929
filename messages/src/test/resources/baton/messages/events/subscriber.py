"""Reads published KV events with pyzmq, and decodes them with vLLM's own classes where vLLM is installed, else with msgspec."""
import json
import sys

import msgspec
import zmq

endpoint, replay_endpoint, topic, count = sys.argv[1:4] + [int(sys.argv[4])]
try:
    from vllm.distributed.kv_events import KVEventBatch

    decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
    print("classes vllm.distributed.kv_events", flush=True)
except ImportError:
    decoder = msgspec.msgpack.Decoder()
    print("classes none", flush=True)

context = zmq.Context()
sub = context.socket(zmq.SUB)
sub.setsockopt_string(zmq.SUBSCRIBE, topic)
sub.setsockopt(zmq.HEARTBEAT_IVL, 100)
sub.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30000)
sub.setsockopt(zmq.RCVTIMEO, 60000)
sub.connect(endpoint)
for _ in range(count):
    got_topic, number, payload = sub.recv_multipart()
    batch = decoder.decode(payload)
    same = msgspec.msgpack.encode(batch) == payload
    plain = msgspec.json.encode(
        msgspec.to_builtins(batch, enc_hook=repr)
    ).decode()
    print("batch", got_topic.decode(), int.from_bytes(number, "big"), "same" if same else "different", plain, flush=True)

replay = context.socket(zmq.DEALER)
replay.setsockopt(zmq.RCVTIMEO, 60000)
replay.connect(replay_endpoint)
replay.send_multipart((b"", (1).to_bytes(8, "big")))
while True:
    empty, got_topic, number, payload = replay.recv_multipart()
    number = int.from_bytes(number, "big", signed=True)
    print("replay", json.dumps([empty.decode(), got_topic.decode(), number, len(payload)]), flush=True)
    if number < 0:
        break
context.destroy(linger=0)
