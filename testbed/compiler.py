"""A C compiler: Debian 12's, unpacked into the cache folder, and the same on every machine.

Only NVIDIA's container toolkit needs one here. The tests' own C files are built by the compiler from PyPI
(`tests/kit/programs.py`), whose linker refuses what the toolkit asks for: symbols that only the driver's library has.
"""

import os

from testbed import debian
from testbed.tools import Missing, cache

MACHINES = {"amd64": "x86-64-linux-gnu", "arm64": "aarch64-linux-gnu"}
PACKAGES = (
    *("gcc-12", "cpp-12", "binutils", "libgcc-12-dev", "libgcc-s1", "libc6", "libc6-dev", "linux-libc-dev"),
    *("libbinutils", "libctf0", "libctf-nobfd0", "libisl23", "libmpc3", "libmpfr6", "libgmp10", "libzstd1"),
    *("libjansson4", "zlib1g"),
)
"""The compiler and what programs are linked with, then the libraries of the compiler itself."""


def environment() -> dict[str, str]:
    """The variables with which Go uses it."""
    machine = MACHINES.get(debian.machine_architecture())
    if machine is None:
        raise Missing(f"no C compiler is known for {debian.machine_architecture()}; known: {', '.join(MACHINES)}")
    root = cache() / "c-compiler"
    debian.unpack([*PACKAGES, f"binutils-{machine}"], root)
    libraries = next((root / "usr/lib").glob("*-linux-gnu"))
    return {
        "CGO_ENABLED": "1",
        "CC": f"{root}/usr/bin/gcc-12 -B{root}/usr/bin --sysroot={root}",
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")])),
    }
