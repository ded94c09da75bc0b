"""The command `carrel`, as people type it: in this process, or in one of its own.

A process of its own needs a second of CPU time before it does anything. It is for what only a process has: signals,
a terminal, its exit; and each command is run once in both ways.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from typer.testing import CliRunner

from carrel.__main__ import app
from tests.kit.eventually import LIMIT_S


@dataclass
class Result:
    code: int
    out: str
    err: str


async def carrel(*arguments: str, **environment: str) -> Result:
    """Run it in another thread of this process: the command has an event loop of its own."""
    env = {"KUBECONFIG": "", **environment}
    with _logging_kept():
        done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=env, prog_name="carrel")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Result(done.exit_code, done.stdout, done.stderr)


@contextmanager
def _logging_kept() -> Iterator[None]:
    """A command logs to its stderr, which is closed after it: what is logged later would fail with a traceback."""
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


async def carrel_process(*arguments: str) -> Result:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "carrel", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": ""},
    )
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    return Result(process.returncode or 0, out.decode(), err.decode())
