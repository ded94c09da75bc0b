"""What people install: one version, with types, and with the files that the code reads."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from carrel import __version__

ROOT = Path(__file__).parents[2]
INSTALLS = re.compile(r"\b(?:pip3?|pipx|uv|poetry|conda)\b[^&|;]*?\b(?:install|run|add|download|wheel)\b|\buvx\b")
SOMEBODY_ELSES = re.compile(r"(?<![\w./-])carrel(?:\[[^\]]*\])?(?![\w./:-])", re.IGNORECASE)
"""The name alone, or with extras or a version."""
PINNED = re.compile(r"^[\s\"'-]*carrel(?:\[[^\]]*\])?\s*[=<>~!]=")
"""A line of a file of requirements."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def test_the_version_stands_in_one_place(wheel: Path) -> None:
    assert wheel.name.startswith(f"carrel_gpu-{__version__}-")
    assert "\nversion =" not in (ROOT / "pyproject.toml").read_text()


def test_the_wheel_has_every_file_of_both_packages_and_nothing_else(wheel: Path) -> None:
    """The mark that it has types, manifests, templates, scripts: what the code reads, or others do."""
    sources = (ROOT / "src", ROOT / "packages" / "kubernetes_in_memory" / "src")
    files = {
        path.relative_to(source).as_posix()
        for source in sources
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    contained = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert {"carrel/py.typed", "kubernetes_in_memory/py.typed"} <= files
    assert not files - contained
    assert {name.split("/")[0] for name in contained} == {"carrel", "kubernetes_in_memory"}


def installs_somebody_elses(line: str) -> bool:
    """Whether the line would fetch the package `carrel` from an index, which other people publish."""
    commands = re.split(r"&&|\|\||[;|]", line)
    named = [
        command for command in commands if (found := INSTALLS.search(command)) and _is_named(command[found.end() :])
    ]
    return bool(named or PINNED.search(line))


def _is_named(arguments: str) -> bool:
    return bool(SOMEBODY_ELSES.search(arguments.split("`")[0]))


@pytest.mark.parametrize(
    ("line", "is_wrong"),
    [
        ("RUN pip install --no-deps carrel && pip install msgspec", True),
        ("pip3 install 'carrel[jupyterhub]'", True),
        ("`pip install carrel==0.1.0`", True),
        ("uvx carrel demo", True),
        ("  - carrel>=0.1", True),
        ("python -m pip install --upgrade carrel", True),
        ("RUN pip install --no-deps /tmp/carrel_gpu-*.whl && carrel --help", False),
        ("pip install carrel-gpu", False),
        ("pipx install .    # then `carrel` is there", False),
        ("carrel demo", False),
        ("helm install carrel charts/carrel", False),
    ],
)
def test_a_line_that_installs_a_strangers_package_is_found(line: str, is_wrong: bool) -> None:
    assert installs_somebody_elses(line) is is_wrong


def test_nothing_that_people_copy_installs_a_strangers_package() -> None:
    folders = (".ci", ".github", "charts", "decisions", "docs", "examples", "packages", "src", "testbed", "tools")
    nested = [file for folder in folders for file in (ROOT / folder).rglob("*")]
    texts = {file: file.read_bytes() for file in (*ROOT.glob("*"), *nested) if file.is_file()}
    lines = [
        f"{file.relative_to(ROOT)}: {line}"
        for file, text in texts.items()
        if b"\0" not in text
        for line in text.decode().splitlines()
        if installs_somebody_elses(line)
    ]

    assert {ROOT / "README.md", ROOT / "docs" / "jupyterhub.md"} <= texts.keys()
    assert not lines


def test_the_forge_runs_what_everybody_can_run_and_nothing_else() -> None:
    workflows = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").iterdir()]
    jobs = [job for workflow in workflows for job in workflow["jobs"].values()]

    assert [step["run"] for job in jobs for step in job["steps"] if "run" in step] == ["sudo .ci/run"]


def test_a_citation_names_what_the_package_names() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert (citation["license"], citation["abstract"]) == (project["license"], project["description"])
