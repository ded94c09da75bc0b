"""configurable-http-proxy, from npm, in the test bed's cache: installed once, in the versions of `proxy/`."""

import hashlib
import shutil
import subprocess
from pathlib import Path

from testbed.tools import Missing, cache, locked, say

PACKAGE = Path(__file__).parent / "proxy"


def proxy_command() -> list[str]:
    """How to start it. Raises `Missing` if there is no Node on this machine."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        raise Missing("the tests with a JupyterHub need Node 18 or newer, and npm. On Debian: apt install nodejs npm")
    files = [PACKAGE / "package.json", PACKAGE / "package-lock.json"]
    version = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:16]
    folder = cache() / f"proxy-{version}"
    with locked("proxy"):
        if not (folder / "ready").exists():
            say("installing configurable-http-proxy")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for each in files:
                shutil.copy(each, folder)
            install = [npm, "ci", "--no-audit", "--no-fund", "--prefix", str(folder)]
            subprocess.run(install, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            (folder / "ready").touch()
    return [node, str(folder / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy")]
