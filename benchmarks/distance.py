"""A TCP proxy in a process of its own that delays each message, as a distant server would."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection


@contextmanager
def delayed(host: str, port: int, round_trip_s: float) -> Iterator[int]:
    """The port on 127.0.0.1 behind which a server is that far away."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (host, port, round_trip_s / 2, theirs)
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(host: str, port: int, delay_s: float, ready: Connection) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(host, port)
        await asyncio.gather(
            _pass_on(reader, requests, delay_s), _pass_on(answers, writer, delay_s)
        )

    async def serve() -> None:
        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float
) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(65536):
        loop.call_later(delay, writer.write, data)
    loop.call_later(delay, writer.close)
