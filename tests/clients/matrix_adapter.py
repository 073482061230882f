#!/usr/bin/env python3
"""A channel adapter: from Matrix-like events in a file to answers on stdout, over clawmux's bus.

    pip install nats-py
    python3 matrix_adapter.py EVENTS.jsonl [nats://127.0.0.1:4222]

Each line of the file is an event as a Matrix server sends it. Publishing one again does no harm, since its event id is
the message's id; an answer that comes again has the id that it had before. It ends when every event is answered.
"""
import asyncio
import json
import sys

import nats
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError


def part(name: str) -> str:
    """A part of a subject: every byte but A-Z a-z 0-9 _ - is written %XX."""
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in name.encode())


async def bring_in(js, events, waiting):
    """Publishes what people say. It is acknowledged once it is in the stream; until then it is published again."""
    for event in events:
        if event["type"] != "m.room.message" or event["content"].get("msgtype") != "m.text":
            continue
        subject = f"exoclaw.matrix.main.{part(event['room_id'])}"
        payload = json.dumps({"content": event["content"]["body"]}).encode()
        headers = {"Nats-Msg-Id": event["event_id"], "Content-Type": "application/json"}
        waiting.add(event["event_id"])
        while True:
            try:
                await js.publish(subject, payload, headers=headers)
                break
            except (nats.errors.Error, OSError) as error:
                print(f"{event['event_id']} is published again: {error!r}", file=sys.stderr)
                await asyncio.sleep(1)


async def carry_out(js, waiting, seen):
    """Prints answers, each once, until nothing waits for one."""
    name, subject = "matrix-adapter", "exoclaw.matrix.*.*.answer"
    answers = await js.pull_subscribe(subject, durable=name, config=ConsumerConfig(ack_wait=30))
    while waiting:
        try:
            batch = await answers.fetch(10, timeout=5)
        except nats.errors.TimeoutError:
            continue
        for message in batch:
            answer, id = json.loads(message.data), message.headers["Nats-Msg-Id"]
            if id not in seen:
                seen.add(id)
                room = message.subject.split(".")[3]
                asked = message.headers.get("Clawmux-In-Reply-To")
                said = answer["text"] or answer.get("error", {}).get("message", "")
                print(json.dumps({"room": room, "to": asked, "status": answer["status"], "body": said}), flush=True)
                if answer["status"] != "waiting":
                    waiting.discard(asked)
            await message.ack()


async def main(path, server):
    with open(path, encoding="utf-8") as file:
        events = [json.loads(line) for line in file if line.strip()]
    link = await nats.connect(server, max_reconnect_attempts=-1)
    js = link.jetstream()
    while True:
        try:
            await js.stream_info("EXOCLAW_OUT")
            break
        except NotFoundError:
            print("waiting for clawmux to make its streams", file=sys.stderr)
            await asyncio.sleep(1)
    waiting = set()
    await bring_in(js, events, waiting)
    await carry_out(js, waiting, set())
    await link.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "nats://127.0.0.1:4222"))
