"""A component loads the libraries that it needs and no others: all are in one image, and each starts by itself."""

import pytest

from tests.kit.loaded_modules import loaded_modules

DATABASE = {"sqlalchemy", "alembic", "psycopg", "aiosqlite"}
PAGES = {"fastapi", "pydantic", "jinja2", "jwt"}
KUBELET = {"grpc", "google.protobuf"}
TERMINAL = {"rich"}

UNWANTED = {
    "admission.run": DATABASE | PAGES | KUBELET | TERMINAL,
    "scheduling.run": DATABASE | PAGES | KUBELET | TERMINAL,
    "lifecycle.run": DATABASE | PAGES | KUBELET | TERMINAL,
    "node.reservation": DATABASE | PAGES | KUBELET | TERMINAL,
    "node.run": DATABASE | PAGES | TERMINAL,
    "bookings.run": KUBELET | TERMINAL,
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """What is loaded after a component. Those that need none of the libraries are imported for all of them: what one
    of the others must not load, these must not load either."""
    shared = [name for name, unwanted in UNWANTED.items() if unwanted == DATABASE | PAGES | KUBELET | TERMINAL]
    imported = "".join(f"import carrel.{name}\n" for name in ("__main__", *shared))
    return loaded_modules(imported, {name: f"import carrel.{name}" for name in UNWANTED})


@pytest.mark.parametrize("component", UNWANTED)
def test_a_component_loads_no_library_that_it_does_not_need(component: str, loaded: dict[str, set[str]]) -> None:
    assert loaded[component] & UNWANTED[component] == set()
