"""Serves a web terminal for interactive shells in the replicas of jobs that set enableWebAccess.

A shell has the permissions of the user who owns the local Vertex process. The shell's URL contains a secret, and only
the page at this URL can connect to the shell.
Source: Vertex AI, "Monitor and debug training with an interactive shell", mid-2026.
"""

import asyncio
import contextlib
import io
import os
import pty
import termios
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from starlette.websockets import WebSocket

from vertex_launch.local.api.http import POLICY_VIOLATION, Route
from vertex_launch.local.views.page import shown

# The page is the same for all shells, because its script connects to the page's own URL.
PAGE = Path(__file__).with_name("shell.html")
SIZE = (40, 200)  # rows and columns; the page wraps longer lines itself
START_SECONDS = 10.0  # how long a shell may take to show its prompt
CHUNK = 2**14  # bytes of output in one message
NOWHERE = "no replica with this URL is running"


def page() -> Route:
    return "GET", "/shell/{job}/{replica}/{secret}", shown(PAGE)


async def connect(open_shell: Callable[[str, str], bool], socket: WebSocket) -> None:
    """Connect a web page to a new shell until the page is closed or the shell exits.

    `open_shell` receives the path of the replica's URL and the path of a terminal, and returns whether the replica is
    running.
    """
    await socket.accept()
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, SIZE)
    async with _ends(master) as (screen, keyboard):
        prompt = b""
        with io.FileIO(slave), contextlib.suppress(TimeoutError):  # open until the shell has opened it
            if open_shell(socket.url.path, os.ttyname(slave)):
                prompt = await asyncio.wait_for(screen.read(CHUNK), START_SECONDS)
        if prompt:
            await _first(_show(prompt, screen, socket), _type(socket, keyboard))
    with contextlib.suppress(RuntimeError):  # the page was closed
        await socket.close(*(() if prompt else (POLICY_VIOLATION, NOWHERE)))


@contextlib.asynccontextmanager
async def _ends(master: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.WriteTransport]]:
    """Open the user's end of a terminal. When this end is closed, the shell at the other end exits."""
    loop, screen = asyncio.get_running_loop(), asyncio.StreamReader()
    seen, typed = io.FileIO(os.dup(master), "rb"), io.FileIO(master, "wb")
    output, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(screen), seen)
    keyboard, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, typed)
    try:
        yield screen, keyboard
    finally:
        output.close()
        keyboard.abort()


async def _show(output: bytes, screen: asyncio.StreamReader, socket: WebSocket) -> None:
    while output:
        await socket.send_bytes(output)
        output = await screen.read(CHUNK)  # raises OSError once the shell has ended


async def _type(socket: WebSocket, keyboard: asyncio.WriteTransport) -> None:
    async for text in socket.iter_text():
        keyboard.write(text.encode())


async def _first(*ways: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines concurrently until the first one ends."""
    tasks = [asyncio.create_task(way) for way in ways]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
