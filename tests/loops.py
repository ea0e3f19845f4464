"""Event loops in threads of their own."""

import asyncio


def end_loop(loop, thread):
    """Ends a loop that runs in a thread as `asyncio.run` does: no task outlives it."""

    async def cancelled():
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(cancelled(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
