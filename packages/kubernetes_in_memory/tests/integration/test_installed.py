"""The package installed by itself: fixture and command work where there is no Carrel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

PACKAGE = Path(__file__).parents[2]
LIMIT_S = 300.0

USERS_TEST = """
import json, urllib.request
from pathlib import Path

def test_of_a_user(kubernetes_api, kubeconfig_file: Path) -> None:
    with urllib.request.urlopen(f"{kubernetes_api.url}/api/v1/namespaces") as answer:
        assert "default" in [each["metadata"]["name"] for each in json.load(answer)["items"]]
    assert kubernetes_api.url in kubeconfig_file.read_text()

def test_that_carrel_is_not_needed() -> None:
    import importlib.util, kubernetes_in_memory
    assert "in_the_venv" in kubernetes_in_memory.__file__
    assert importlib.util.find_spec("carrel") is None
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a venv with the wheel and its dependencies, and without Carrel. Nothing is downloaded."""
    folder = tmp_path_factory.mktemp("in_the_venv")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder, PACKAGE)
    run(sys.executable, "-m", "pip", *build, cwd=folder)
    (wheel,) = folder.glob("kubernetes_in_memory-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", packages, wheel, cwd=folder)
    _borrow_dependencies(packages)
    return folder / "venv" / "bin" / "python"


def _borrow_dependencies(packages: Path) -> None:
    """Links what is installed here, except Carrel, whose link to its source would be found too."""
    here = next(Path(place) for place in sys.path if place.endswith("site-packages"))
    for found in here.iterdir():
        if "carrel" not in found.name and not (packages / found.name).exists():
            (packages / found.name).symlink_to(found)


def test_the_wheel_has_code_data_and_types_and_nothing_else(python: Path) -> None:
    (wheel,) = python.parents[2].glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"kubernetes_in_memory/py.typed", "kubernetes_in_memory/built_in_fields.json"} <= set(names)
    assert "kubernetes_in_memory/pytest_plugin.py" in names
    assert not [name for name in names if not name.startswith("kubernetes_in_memory")]


def test_the_fixture_is_found_by_pytest(python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(USERS_TEST)
    assert "2 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_user.py", cwd=tmp_path)


def test_the_command_serves_with_tls_and_writes_a_kubeconfig(python: Path, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    command = [str(python), "-m", "kubernetes_in_memory", "--port", "0", "--tls", "--kubeconfig", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    cluster = yaml.safe_load(config.read_text())["clusters"][0]["cluster"]
    assert cluster["server"] in first
    assert cluster["server"].startswith("https://127.0.0.1:")
    assert "certificate-authority-data" in cluster
