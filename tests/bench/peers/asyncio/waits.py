"""A bare asyncio loop over Redis Streams: redis-py and aiohttp, and nothing around them.

In: the URL to ask, and how many tasks at once; REDIS_URL. Out: "ready", once it can take tasks of the stream
`work`. Each task is one request. It ends with its standard input. It has no leases, retries or statuses, and
loses what a crash interrupts.
"""

import asyncio
import os
import sys

import aiohttp
import redis.asyncio

url, at_once = sys.argv[1], int(sys.argv[2])


async def main():
    pool = redis.asyncio.BlockingConnectionPool.from_url(os.environ["REDIS_URL"], timeout=None)
    queue = redis.asyncio.Redis.from_pool(pool)
    await queue.xgroup_create("work", "loop", "0", mkstream=True)
    free, running = asyncio.Semaphore(at_once), set()
    asyncio.get_running_loop().add_reader(sys.stdin, os._exit, 0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(entry):
            async with session.post(url, data=b"x" * 100) as answer:
                if answer.content_type == "text/event-stream":
                    (await answer.text()).count("data: ")
                else:
                    len((await answer.json())["choices"])
            await queue.xack("work", "loop", entry)
            await queue.xdel("work", entry)
            free.release()

        print("ready", flush=True)
        while True:
            await free.acquire()
            found = await queue.xreadgroup("loop", "worker", {"work": ">"}, count=1, block=1000)
            if not found:
                free.release()
                continue
            task = asyncio.create_task(ask(found[0][1][0][0]))
            running.add(task)
            task.add_done_callback(running.discard)


asyncio.run(main())
