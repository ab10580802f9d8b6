"""A NATS client not written in Rust connects with the sentinel creds and a bearer, and reports what the broker let it do.

stdin: JSON {server, creds, token, nonce, publish: [subject], subscribe: [subject]}
stdout: one JSON line {connected, error?, publish: {subject: error|null}, subscribe: {subject: error|null}}
"""
import asyncio
import json
import sys

import nats


async def main() -> None:
    order = json.load(sys.stdin)
    errors: list[str] = []

    async def on_error(error: Exception) -> None:
        errors.append(str(error))

    try:
        client = await nats.connect(
            order["server"],
            user_credentials=order["creds"],
            token=order["token"],
            name=order["nonce"],
            inbox_prefix=f"_INBOX_{order['nonce']}".encode(),
            allow_reconnect=False,
            connect_timeout=5,
            error_cb=on_error,
        )
    except Exception as error:
        print(json.dumps({"connected": False, "error": str(error)}))
        return

    async def attempt(action) -> str | None:
        errors.clear()
        await action
        # This client queues commands but writes a PING at once, so the PING of one flush may overtake what it should follow.
        # By the PONG of the first the queue is written; the broker answers a violation before the PONG of the second.
        await client.flush(timeout=5)
        await client.flush(timeout=5)
        # The callback runs on the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        return errors[0] if errors else None

    publish = {s: await attempt(client.publish(s, b"hello")) for s in order["publish"]}
    subscribe = {s: await attempt(client.subscribe(s)) for s in order["subscribe"]}
    print(json.dumps({"connected": True, "publish": publish, "subscribe": subscribe}))
    await client.close()


asyncio.run(main())
