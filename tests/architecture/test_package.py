"""What people install: one version, with types, and with the files that the code reads."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from carrel import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    assert wheel.name.startswith(f"carrel-{__version__}-")
    assert "\nversion =" not in (ROOT / "pyproject.toml").read_text()


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """The mark that it has types, manifests, templates, scripts: what the code reads, or others do."""
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "carrel").rglob("*") if path.is_file()}

    assert "carrel/py.typed" in files
    assert not [file for file in files - set(zipfile.ZipFile(wheel).namelist()) if "__pycache__" not in file]
