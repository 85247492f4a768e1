"""An asyncio server that returns what it gets, with its digest, and 40 clients at once: python3 sockets.py serve|call"""

import asyncio
import hashlib
import random
import sys

ADDRESS = ("127.0.0.1", 9000)
CLIENTS = 40


async def answer(reader, writer):
    left = int(await reader.readline())
    digest = hashlib.sha256()
    while left:
        data = await reader.read(min(left, 65536))
        assert data, "the stream ended early"
        digest.update(data)
        left -= len(data)
        writer.write(data)
        await writer.drain()
    writer.write(digest.digest())
    await writer.drain()
    writer.close()


async def call(number):
    reader, writer = await asyncio.open_connection(*ADDRESS)
    data = random.Random(number).randbytes(300_000 + number)

    async def send():
        writer.write(b"%d\n" % len(data))
        writer.write(data)
        await writer.drain()

    sending = asyncio.create_task(send())
    assert await reader.readexactly(len(data)) == data
    await sending
    assert await reader.read() == hashlib.sha256(data).digest()
    writer.close()
    await writer.wait_closed()


async def main():
    if sys.argv[1] == "serve":
        async with await asyncio.start_server(answer, *ADDRESS) as server:
            await server.serve_forever()
    await asyncio.wait_for(asyncio.gather(*map(call, range(CLIENTS))), 60)
    print("the data are right")


asyncio.run(main())
