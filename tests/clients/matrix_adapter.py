#!/usr/bin/env python3
"""A channel adapter: from Matrix-like events in a file to answers on stdout, over clawmux's bus.

    pip install nats-py
    python3 matrix_adapter.py EVENTS.jsonl [nats://127.0.0.1:4222]

Each line of the file is an event as a Matrix server sends it, such as

    {"type": "m.room.message", "room_id": "!a:example.org", "sender": "@ada:example.org", "event_id": "$1",
     "content": {"msgtype": "m.text", "body": "hello"}}

Publishing one again does no harm, since its event id is the message's id: run it again, after a crash or not, and it
prints the same answers. It ends when every event is answered.
"""
import asyncio
import json
import sys

import nats
from nats.js.errors import Error, NotFoundError


def part(name: str) -> str:
    """A part of a subject: every byte but A-Z a-z 0-9 _ - is written %XX."""
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in name.encode())


async def bring_in(js, event):
    """Publishes what somebody says, again and again until the stream has it."""
    subject = f"exoclaw.matrix.main.{part(event['room_id'])}"
    payload = json.dumps({"content": event["content"]["body"]}).encode()
    headers = {"Nats-Msg-Id": event["event_id"], "Content-Type": "application/json"}
    while True:
        try:
            return await js.publish(subject, payload, headers=headers)
        except (nats.errors.Error, Error, OSError) as error:
            print(f"{event['event_id']} is published again: {error!r}", file=sys.stderr)
            await asyncio.sleep(1)


async def carry_out(js, waiting):
    """Prints the answers to these messages, each once. A real adapter has a durable consumer, and keeps the ids that it
    has shown."""
    while True:
        try:
            answers = await js.subscribe("exoclaw.matrix.*.*.answer", stream="EXOCLAW_OUT", ordered_consumer=True)
            break
        except NotFoundError:
            print("waiting for clawmux to make its streams", file=sys.stderr)
            await asyncio.sleep(1)
    seen = set()
    while waiting:
        try:
            message = await answers.next_msg(timeout=5)
        except nats.errors.TimeoutError:
            continue
        answer, answer_id = json.loads(message.data), message.headers["Nats-Msg-Id"]
        asked = message.headers.get("Clawmux-In-Reply-To")
        if asked not in waiting or answer_id in seen:
            continue
        seen.add(answer_id)
        said = answer["text"] or answer.get("error", {}).get("message", "")
        room = message.subject.split(".")[3]
        print(json.dumps({"room": room, "to": asked, "status": answer["status"], "body": said}), flush=True)
        if answer["status"] != "waiting":
            waiting.discard(asked)


async def main(path, server):
    with open(path, encoding="utf-8") as file:
        events = [json.loads(line) for line in file if line.strip()]
    events = [event for event in events if event["content"].get("msgtype") == "m.text"]
    link = await nats.connect(server, max_reconnect_attempts=-1)
    js = link.jetstream()
    for event in events:
        await bring_in(js, event)
    await carry_out(js, {event["event_id"] for event in events})
    await link.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "nats://127.0.0.1:4222"))
