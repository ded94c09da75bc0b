"""The two layers of the image as folders: Debian's files with the Python packages, and Carrel itself above them.

The lower one changes with the lists in `contents` and is kept in the cache; the upper one is made each time.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from testbed import debian
from testbed.tools import Missing, cache, locked, say
from tools.image import contents
from tools.image.contents import ARCHITECTURES, CHECKOUT, SITE

COMPILE = "import compileall, sys; sys.exit(not compileall.compile_dir({folder!r}, quiet=1, stripdir={root!r}, {how}))"
UNCHECKED = "invalidation_mode=__import__('py_compile').PycInvalidationMode.UNCHECKED_HASH, maxlevels=99"
"""A layer keeps no times, so a compiled file is not compared with its source's."""


def lower(architecture: str) -> Path:
    """Debian and the Python packages. Kept; must not be changed."""
    parts = [*contents.DEBIAN_PACKAGES, contents.PYTHON_PACKAGES.read_text(), *_code_that_makes_it()]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    kept = cache() / "image" / f"{architecture}-{key}"
    with locked(f"image-{architecture}"):  # of the machine's architecture too, to compile another's
        if not kept.exists():
            _make_lower(architecture, kept)
    return kept


def _code_that_makes_it() -> list[str]:
    return [Path(__file__).read_text(), Path(str(contents.__file__)).read_text()]


def _make_lower(architecture: str, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        root = Path(scratch) / "root"
        debian.unpack(contents.DEBIAN_PACKAGES, root, architecture)
        (root / "var/lib/dpkg").mkdir(parents=True)
        # One file for each package, as in images without a package manager: scanners look there.
        (root / ".unpacked").rename(root / "var/lib/dpkg/status.d")
        (root / ".downloads").rmdir()
        certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
        _write(root / contents.CERTIFICATES, "".join(each.read_text() for each in certificates))
        for name in contents.UNUSED_FOLDERS:
            shutil.rmtree(root / name, ignore_errors=True)
        for name, target in contents.LINKS.items():
            (root / name).symlink_to(target)
        for name, text in contents.FILES.items():
            _write(root / name, text, 0o755 if "/bin/" in name else 0o644)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        _install_python_packages(architecture, root / SITE)
        _drop_unused(root / SITE)
        _compile(root, root / "usr/lib", architecture)
        root.rename(kept)


def _install_python_packages(architecture: str, site: Path) -> None:
    say(f"fetching Python packages for {architecture}")
    machine = ARCHITECTURES[architecture]
    glibcs = [f"manylinux_2_{minor}_{machine}" for minor in range(contents.GLIBC_MINOR, 4, -1)]
    platforms = [*glibcs, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    command = ["install", "--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile"]
    command += [f"--python-version={contents.PYTHON}", "--implementation=cp", f"--target={site}"]
    _pip(*command, *(f"--platform={each}" for each in platforms), f"--requirement={contents.PYTHON_PACKAGES}")
    # Commands of the packages, such as alembic's.
    shutil.rmtree(site / "bin", ignore_errors=True)


def upper(folder: Path, architecture: str) -> None:
    """Carrel itself, into an empty folder."""
    site = folder / SITE
    with tempfile.TemporaryDirectory() as scratch:
        # The lock file of the tests brings what builds a wheel; where that is missing, pip fetches it.
        has_builder = importlib.util.find_spec("hatchling") is not None
        isolation = ["--no-build-isolation"] if has_builder else []
        _pip("wheel", "--no-deps", *isolation, f"--wheel-dir={scratch}", str(CHECKOUT))
        with zipfile.ZipFile(next(Path(scratch).glob("carrel_gpu-*.whl"))) as wheel:
            wheel.extractall(site)
    _compile(lower(debian.machine_architecture()), site, architecture, stripped=folder)


def _drop_unused(site: Path) -> None:
    for file in [each for each in site.rglob("*") if each.suffix in contents.UNUSED_SUFFIXES]:
        file.unlink()
    for folder in [each for each in site.rglob("tests") if each.is_dir()]:
        shutil.rmtree(folder)


def _compile(root: Path, folder: Path, architecture: str, stripped: Path | None = None) -> None:
    """With the image's own Python, so that it does not matter which one runs this. The result fits any machine."""
    native = debian.machine_architecture()
    home = root if architecture == native or stripped else lower(native)
    machine = ARCHITECTURES[native]
    loader = next(home.glob(f"lib*/**/ld-linux-{machine.replace('_', '-')}.so.*"))
    libraries = [home / part / f"{machine}-linux-gnu" for part in ("lib", "usr/lib")]
    script = COMPILE.format(folder=str(folder), root=str(stripped or root), how=UNCHECKED)
    command = [str(loader), "--library-path", ":".join(map(str, libraries)), str(home / "usr/bin/python3.11")]
    environment = {"PYTHONHOME": str(home / "usr"), "PYTHONDONTWRITEBYTECODE": "1"}
    outcome = subprocess.run([*command, "-c", script], env=environment, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise Missing(f"the image's Python could not compile {folder}:\n{outcome.stdout}{outcome.stderr}")


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise Missing(f"pip {' '.join(words[:3])} … failed:\n{outcome.stderr.strip()}")


def _write(file: Path, text: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
