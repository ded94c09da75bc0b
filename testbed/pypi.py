"""One wheel from PyPI, pinned by version and by hash."""

import subprocess
import sys
from pathlib import Path

from testbed.tools import Missing


def fetch(requirement: str, sha256: str, folder: Path) -> Path:
    """The wheel, downloaded into the folder. `requirement` names one version exactly."""
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--dest", str(folder), "--requirement", str(pinned)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if outcome.returncode != 0 or wheel is None:
        raise Missing(f"PyPI's {requirement} could not be fetched:\n{outcome.stderr.strip()}")
    return wheel
