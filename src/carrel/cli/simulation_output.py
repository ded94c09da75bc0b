"""Writes the files of `carrel simulate`.

Whether they can be written is tried before the first run, which may take hours. A file is written beside its target
and moved there: a run that breaks leaves the old file as it was.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import typer

from carrel.parsing import Malformed

STDOUT = "/dev/stdout"
DEVICES = ("/dev/", "/proc/")
"""There is no file beside such a target, as /dev/stdout: it is written to at once."""


class OutputFile:
    def __init__(self, option: str, path: Path) -> None:
        self.option = option
        self.path = path
        self._target = Path(os.path.realpath(path))  # a link stays, what it leads to is replaced

    def problems(self, others: Mapping[str, Path]) -> list[str]:
        """Why it cannot be written. `others`: files that must not be overwritten, by what they are."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self._target.lstat()  # raises where the name is too long, or a folder may not be searched
        if self._target.is_dir():
            return [self._problem("a file; this is a folder")]
        if not self._target.parent.is_dir():
            return [self._problem(f"a file in a folder that exists; {self._target.parent} does not")]
        found = [
            self._problem(f"another file than that of {what}")
            for what, other in others.items()
            if _is_same(self._target, other)
        ]
        if self._target.exists() and not os.access(self._target, os.W_OK):
            found.append(self._problem("a file that may be written"))
        elif not self._is_written_at_once:
            try:
                self._beside().unlink()
            except OSError as error:
                if not self._target.exists():
                    found.append(self._problem(f"a file that can be written ({error.strerror})"))
        return found

    def write(self, text: str) -> None:
        """All of it, or nothing. Always in UTF-8. Raises `OSError`."""
        contents = text.encode()
        if self._is_written_at_once:
            if str(self.path) == STDOUT:
                typer.echo(text, nl=False)  # opened once more, it would have a position of its own
            else:
                self.path.write_bytes(contents)
            return
        try:
            beside = self._beside()
        except OSError:
            self._target.write_bytes(contents)  # the file may be written, its folder may not
            return
        try:
            beside.write_bytes(contents)
            if self._target.exists():
                beside.chmod(self._target.stat().st_mode & 0o777)
            beside.replace(self._target)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise

    @property
    def _is_written_at_once(self) -> bool:
        is_other = self._target.exists() and not self._target.is_file()
        return is_other or str(self.path).startswith(DEVICES)

    def _beside(self) -> Path:
        """A new, empty file."""
        beside = self._target.parent / f".carrel-simulate-{secrets.token_hex(8)}"
        beside.touch(exist_ok=False)
        return beside

    def _problem(self, expected: str) -> str:
        return str(Malformed(self.option, "the file", str(self.path), expected))


def output_problems(files: Sequence[OutputFile], inputs: Mapping[str, Path]) -> list[str]:
    """Why the files cannot be written, all at once."""
    found = []
    others = dict(inputs)
    for file in files:
        found += file.problems(others)
        others[file.option] = file.path
    return found


def _is_same(target: Path, other: Path) -> bool:
    with suppress(OSError):
        return target.samefile(other)
    return target == Path(os.path.realpath(other))
