"""A component loads the libraries that it needs and no others: all are in one image, and each starts by itself."""

import subprocess
import sys

import pytest

DATABASE = {"sqlalchemy", "alembic", "psycopg", "aiosqlite"}
PAGES = {"fastapi", "pydantic", "jinja2", "jwt"}
KUBELET = {"grpc", "google.protobuf"}
TERMINAL = {"rich"}


@pytest.mark.parametrize(
    ("component", "unwanted"),
    [
        ("admission.run", DATABASE | PAGES | KUBELET | TERMINAL),
        ("scheduling.run", DATABASE | PAGES | KUBELET | TERMINAL),
        ("lifecycle.run", DATABASE | PAGES | KUBELET | TERMINAL),
        ("node.run", DATABASE | PAGES | TERMINAL),
        ("node.reservation", DATABASE | PAGES | KUBELET | TERMINAL),
        ("bookings.run", KUBELET | TERMINAL),
    ],
)
def test_a_component_loads_no_library_that_it_does_not_need(component: str, unwanted: set[str]) -> None:
    script = f"import sys, carrel.__main__, carrel.{component}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert unwanted.intersection(loaded) == set()
