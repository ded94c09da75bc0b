"""Draws on the whole terminal until it is told to stop, and gives the terminal back as it was, however that ends.

Drawn is what fits: anew at intervals, after each key, and when the terminal has another size. While Ctrl-Z has stopped
the process, the shell has the terminal.

Requires a terminal and the main thread, which gets the signals.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live

Draw = Callable[[int, int], RenderableType]
"""Returns what is to be seen on a terminal of that width and height."""

NAMED_KEYS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
}
"""What terminals send for keys that are no letters."""

_KEY = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_AT_ONCE = 4096


def keys_in(sent: str) -> Iterator[str]:
    """The keys by which a terminal sends this: a letter is itself, others have names; what is unknown is left out."""
    for each in _KEY.findall(sent):
        if each in NAMED_KEYS or each.isprintable():
            yield NAMED_KEYS.get(each, each)


async def show_live(
    console: Console,
    draw: Draw,
    stop: asyncio.Event,
    every_s: float,
    on_key: Callable[[str], None] | None = None,
) -> None:
    """Show it until `stop` is set, as the caller's handler of signals does. Without `on_key` the keyboard is left
    alone; with it, the end of the terminal is the end."""
    changed = asyncio.Event()

    def pressed(sent: str) -> None:
        for key in keys_in(sent):
            on_key(key)  # type: ignore[misc] # called only if there is one
        changed.set()

    keyboard = _Keyboard(pressed, stop.set) if on_key is not None and sys.stdin.isatty() else None
    with (
        Live(console=console, screen=True, auto_refresh=False) as live,
        keyboard.read() if keyboard is not None else contextlib.nullcontext(),
        _signals(live, keyboard, changed.set),
    ):
        while not stop.is_set():
            changed.clear()
            live.update(draw(console.width, console.height), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await _either(stop, changed)


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(one.wait()), asyncio.ensure_future(other.wait())]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


class _Keyboard:
    """Keys come one by one, and are not shown."""

    def __init__(self, pressed: Callable[[str], None], gone: Callable[[], None]) -> None:
        self._fd = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._fd)
        self._pressed = pressed
        self._gone = gone

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._take)
        try:
            self.begin()
            yield
        finally:
            loop.remove_reader(self._fd)
            self.end()

    def begin(self) -> None:
        tty.setcbreak(self._fd)

    def end(self) -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def _take(self) -> None:
        try:
            sent = os.read(self._fd, _AT_ONCE)
        except OSError:
            sent = b""
        if sent:
            self._pressed(sent.decode(errors="ignore"))
        else:
            self._gone()


@contextlib.contextmanager
def _signals(live: Live, keyboard: _Keyboard | None, redraw: Callable[[], None]) -> Iterator[None]:
    def suspend() -> None:
        live.stop()
        if keyboard is not None:
            keyboard.end()
        os.kill(os.getpid(), signal.SIGSTOP)  # goes on here when the shell continues the process
        if keyboard is not None:
            keyboard.begin()
        live.start()
        redraw()

    loop = asyncio.get_running_loop()
    handlers = {signal.SIGWINCH: redraw, signal.SIGTSTP: suspend}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
