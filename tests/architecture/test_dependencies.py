"""Which versions of our dependencies people may get: none with a known advisory, and what was tested."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PACKAGES = ("packages/kubernetes_in_memory/pyproject.toml", "packages/carrel_gpu_notebook/pyproject.toml")
LOCKS = ("requirements.lock", "tools/image/requirements.lock")
FIRST_SAFE = {
    "aiohttp": "3.13.3",  # CVE-2025-53643: smuggled requests; CVE-2025-69223 and others: small bodies that grow
    "cryptography": "46.0.7",  # CVE-2024-12797: OpenSSL; CVE-2026-26007: curve points; CVE-2026-34073: name constraints
    "fastapi": "0.109.1",  # CVE-2024-24762: slow forms
    "grpcio": "1.65.5",  # CVE-2024-7246: poisoned HPACK tables
    "h11": "0.16",  # CVE-2025-43859: smuggled requests
    "idna": "3.7",  # CVE-2024-3651: slow names
    "jinja2": "3.1.6",  # CVE-2025-27516: a way out of the sandbox
    "jupyterhub": "5.4.4",  # CVE-2024-41942: rights that grow; CVE-2026-33709: redirects elsewhere
    "mako": "1.2.2",  # CVE-2022-40023: slow templates
    "protobuf": "6.33.5",  # CVE-2025-4565, CVE-2026-0994: deep messages
    "pyjwt": "2.12",  # CVE-2024-53861: issuers that only begin alike; CVE-2026-32597: critical headers
    "python-multipart": "0.0.26",  # CVE-2024-53981, CVE-2026-24486, CVE-2026-40347: slow forms, paths
    "pyyaml": "5.4",  # CVE-2020-14343: code in files
    "sqlalchemy": "1.3",  # CVE-2019-7164: statements in an order
    "starlette": "0.49.1",  # CVE-2025-54121: large forms block; CVE-2025-62727: slow ranges
    "uvicorn": "0.11.7",  # CVE-2020-7694, CVE-2020-7695: forged lines in logs and answers
}
"""Package → the first version without any advisory that is known to us."""


def requirements(file: str) -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / file).read_text())["project"]
    extras = [each for extra in project.get("optional-dependencies", {}).values() for each in extra]
    found = map(Requirement, [*project["dependencies"], *extras])
    return {canonicalize_name(each.name): each for each in found}


def lower_bound(requirement: Requirement) -> Version:
    (bound,) = [each.version for each in requirement.specifier if each.operator == ">="]
    return Version(bound)


def locked(file: str) -> dict[str, list[Version]]:
    pins: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", (ROOT / file).read_text(), re.MULTILINE):
        pins.setdefault(canonicalize_name(name), []).append(Version(version))
    return pins


@pytest.mark.parametrize("file", ["pyproject.toml", *PACKAGES])
def test_the_lower_bounds_exclude_versions_with_known_advisories(file: str) -> None:
    wanted = requirements(file)
    low = {name: str(lower_bound(each)) for name, each in wanted.items() if name in FIRST_SAFE}

    assert {name: bound for name, bound in low.items() if Version(bound) < Version(FIRST_SAFE[name])} == {}


@pytest.mark.parametrize("file", LOCKS)
def test_what_is_locked_has_no_known_advisory_and_is_within_the_bounds(file: str) -> None:
    pins, wanted = locked(file), requirements("pyproject.toml")

    assert len(pins) > 30
    for name, first_safe in FIRST_SAFE.items():
        assert all(version >= Version(first_safe) for version in pins.get(name, ())), name
    for name, requirement in wanted.items():
        assert all(version in requirement.specifier for version in pins.get(name, ())), name
