"""For which machine programs and libraries were compiled, read from their headers: none of them is run."""

from collections.abc import Iterator
from pathlib import Path

from testbed.tools import Missing

ELF = b"\x7fELF"
MACHINES = {"amd64": 0x3E, "arm64": 0xB7}
"""`e_machine` of a header: two bytes, little-endian, at offset 18."""
HEADER = slice(18, 20)


def binaries(folder: Path) -> Iterator[tuple[Path, int]]:
    """Each program and library, and the number of its machine."""
    for file in sorted(folder.rglob("*")):
        if file.is_symlink() or not file.is_file():
            continue
        with file.open("rb") as opened:
            header = opened.read(HEADER.stop)
        if header.startswith(ELF):
            yield file, int.from_bytes(header[HEADER], "little")


def check_binaries(folder: Path, architecture: str) -> None:
    """Raises `Missing` if one is for another machine, or if there is none."""
    found = dict(binaries(folder))
    wrong = [str(file.relative_to(folder)) for file, machine in found.items() if machine != MACHINES[architecture]]
    if wrong or not found:
        why = f"not for {architecture}: {', '.join(wrong[:5])}" if wrong else "it has no programs"
        raise Missing(f"the image cannot be used: {why}")
