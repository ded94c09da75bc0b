"""The rules about imports, in sentences. A component is a folder of `src/carrel` that runs as a process of its own."""

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

PURE_PACKAGES = (
    "carrel.ledger",
    "carrel.dialects",
    "carrel.parsing",
    "carrel.kubernetes.objects",
    "carrel.simulation",
)
"""Decide and read; no I/O, no clock, no library but a small pure one."""

PURE_MODULES = (
    "carrel.bookings.calendar",
    "carrel.bookings.capacity",
    "carrel.bookings.groups",
    "carrel.bookings.icalendar",
    "carrel.bookings.limits",
    "carrel.bookings.mirrored",
    "carrel.bookings.notifications.messages",
    "carrel.bookings.pages.hub_findings",
    "carrel.bookings.people",
    "carrel.bookings.records",
    "carrel.bookings.rule_results",
    "carrel.bookings.rules",
    "carrel.jupyterhub.hand_over",
    "carrel.jupyterhub.profiles",
    "carrel.jupyterhub.spawn_page",
    "carrel.jupyterhub.startable",
    "carrel.lifecycle.holdings",
    "carrel.lifecycle.victim_prices",
    "carrel.lifecycle.victims",
    "carrel.node.allocation_order",
    "carrel.node.device_names",
    "carrel.node.memory_offer_decision",
)
"""The decisions of a component, beside the code that acts on them."""

COMPONENTS = ("admission", "bookings", "lifecycle", "node", "scheduling")

SHARED = (
    "carrel",
    "carrel.caller_settings",
    "carrel.cluster_file",
    "carrel.command_errors",
    "carrel.dialects",
    "carrel.http",
    "carrel.installation",
    "carrel.kubernetes",
    "carrel.leases",
    "carrel.ledger",
    "carrel.log_lines",
    "carrel.manifests",
    "carrel.parsing",
    "carrel.process",
    "carrel.settings",
)
"""What every component may use."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "carrel.parsing": (),
    "carrel.ledger": (),
    "carrel.kubernetes.objects": ("carrel.parsing",),
    "carrel.kubernetes": ("carrel", "carrel.parsing"),
    "carrel.dialects": ("carrel.ledger", "carrel.parsing", "carrel.kubernetes.objects"),
    "carrel.http": ("carrel",),
    "carrel.cluster_file": ("carrel.ledger", "carrel.parsing"),
    "carrel.leases": ("carrel.dialects", "carrel.kubernetes", "carrel.ledger", "carrel.parsing"),
    "carrel.installation": ("carrel.dialects", "carrel.kubernetes"),
    "carrel.manifests": (),
    "carrel.command_errors": ("carrel.parsing",),
    "carrel.log_lines": ("carrel.parsing",),
    "carrel.process": (
        "carrel.command_errors",
        "carrel.installation",
        "carrel.kubernetes",
        "carrel.log_lines",
        "carrel.parsing",
        "carrel.settings",
    ),
    "carrel.caller_settings": ("carrel.command_errors", "carrel.http", "carrel.parsing"),
    "carrel.settings": ("carrel.dialects", "carrel.kubernetes", "carrel.ledger", "carrel.parsing"),
    **{f"carrel.{component}": (*SHARED, "carrel.bookings.client", *PURE_MODULES) for component in COMPONENTS},
    "carrel.jupyterhub": ("carrel.dialects",),
    "carrel.simulation": ("carrel.ledger", "carrel.parsing", *PURE_MODULES),
    "carrel.cli": (
        *SHARED,
        "carrel.admission.settings",
        "carrel.bookings",
        "carrel.lifecycle",
        "carrel.node.settings",
        "carrel.node.withdrawal",
        "carrel.scheduling",
        "carrel.simulation",
    ),
    "kubernetes_in_memory": (),
}
"""Package → what it may import besides itself. `demo` and `__main__` put everything together and import anything."""

LIBRARIES = {
    "aiohttp": ("carrel.bookings", "carrel.cli", "carrel.demo", "kubernetes_in_memory"),
    "aiosqlite": ("carrel.bookings.store",),
    "alembic": ("carrel.bookings.store",),
    "cryptography": ("carrel.admission", "carrel.kubernetes", "kubernetes_in_memory"),
    "fastapi": ("carrel.bookings",),
    "google": ("carrel.node.kubelet.grpc_stubs",),
    "grpc": ("carrel.node.kubelet",),
    "grpc_tools": (),
    "httptools": ("carrel.kubernetes",),
    "jinja2": ("carrel.bookings.pages",),
    "jupyterhub": ("carrel.jupyterhub",),
    "kubernetes_asyncio": ("carrel.jupyterhub",),
    "kubespawner": ("carrel.jupyterhub",),
    "tornado": ("carrel.jupyterhub",),
    "traitlets": ("carrel.jupyterhub",),
    "jwt": ("carrel.bookings.sign_in",),
    "markupsafe": ("carrel.bookings.pages", "carrel.bookings.sign_in"),
    "msgspec": ("carrel", "kubernetes_in_memory"),
    "prometheus_client": ("carrel",),
    "psycopg": ("carrel.bookings.store",),
    "pydantic": ("carrel.bookings",),
    "pytest": ("kubernetes_in_memory.pytest_plugin",),
    "pynvml": ("carrel.node.nvidia",),
    "rich": ("carrel.cli", "carrel.demo"),
    "sqlalchemy": ("carrel.bookings.store",),
    "starlette": ("carrel",),
    "typer": ("carrel", "kubernetes_in_memory"),
    "uvicorn": ("carrel.http", "kubernetes_in_memory"),
    "uvloop": ("carrel.process",),
    "yarl": ("carrel.kubernetes",),
    "yaml": ("carrel", "kubernetes_in_memory"),
}
"""Where each library may appear: what is used in one place can be replaced there."""

PURE_LIBRARIES = {
    "carrel.kubernetes.objects": ("msgspec",),
    "carrel.dialects": ("msgspec",),
    "carrel.jupyterhub": ("msgspec",),
    "carrel.simulation": ("msgspec",),
}
"""Decodes JSON into typed objects; it does no I/O."""

FOREIGN_WORDS = (
    "aliyun.com",
    "ALIYUN_COM",
    "gpu.scheduling",
    "nvidia.com/",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "run.ai",
    "runai",
    "gpu-fraction",
    "terminate-at",
    "hub.jupyter.org",
    "carrel.dev/",
)


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    def at(self, node: ast.expr) -> str:
        return f"{self.path.relative_to(ROOT)}:{node.lineno}"

    def imports(self) -> Iterator[str]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: imports are absolute, so that the rules can be seen"
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in names() else node.module or ""

    def is_in(self, packages: Iterable[str]) -> bool:
        return is_in(self.name, packages)


def is_in(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages if package != "carrel")


@cache
def names() -> frozenset[str]:
    return frozenset(
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCE.rglob("*.py")
    )


@cache
def modules() -> list[Module]:
    return [
        Module(
            ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"),
            path,
            ast.parse(path.read_text()),
        )
        for path in sorted(SOURCE.rglob("*.py"))
    ]


def is_generated(module: Module) -> bool:
    return "_pb2" in module.path.name


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    narrower = [other for other in MAY_IMPORT if other.startswith(f"{package}.")]
    allowed = (package, *MAY_IMPORT[package])
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        if module.is_in([package]) and not module.is_in(narrower)
        for name in module.imports()
        if name.split(".")[0] in ("carrel", "kubernetes_in_memory")
        and not is_in(name, allowed)
        and not (name == "carrel" and "carrel" in allowed)
    ]
    assert not wrong


def test_pure_code_imports_the_standard_library_and_pure_code_only() -> None:
    pure = (*PURE_PACKAGES, *PURE_MODULES)
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        if module.is_in(pure)
        for name in module.imports()
        if not is_in(name, pure)
        and name.split(".")[0] not in sys.stdlib_module_names
        and not any(
            module.is_in([package]) and name.split(".")[0] in libraries for package, libraries in PURE_LIBRARIES.items()
        )
    ]
    assert not wrong


def test_pure_code_does_no_io_reads_no_clock_and_uses_no_randomness_of_its_own() -> None:
    forbidden = {"os", "io", "socket", "subprocess", "time", "asyncio", "threading", "logging", "pathlib", "secrets"}
    wrong = []
    for module in modules():
        if not module.is_in((*PURE_PACKAGES, *PURE_MODULES)):
            continue
        wrong += [f"{module.name} imports {name}" for name in module.imports() if name in forbidden]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
                "now",
                "utcnow",
                "today",
                "open",
                "print",
                "input",
            ):
                wrong.append(f"{module.at(node)} calls {ast.unparse(node.func)}")
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
                wrong.append(
                    f"{module.at(node)} uses randomness of its own; only a Random that is passed in may be used"
                )
    assert not wrong


def test_each_library_appears_only_where_it_belongs() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        if not is_generated(module)
        for name in module.imports()
        if (library := name.split(".")[0]) not in sys.stdlib_module_names | {"carrel", "kubernetes_in_memory"}
        and not any(module.name == place or module.name.startswith(f"{place}.") for place in LIBRARIES.get(library, ()))
    ]
    assert not wrong


def test_foreign_words_are_spelled_in_the_dialects_only() -> None:
    wrong = [
        f"{module.at(node)} spells {word}"
        for module in modules()
        if not module.is_in(["carrel.dialects"]) and not is_generated(module)
        for node in strings(module.tree)
        for word in FOREIGN_WORDS
        if word in str(node.value)
    ]
    assert not wrong


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Without docstrings, and without the string under a field, which says what the field is for."""
    nodes = list(ast.walk(tree))
    documentation = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node


def test_only_settings_and_entry_points_read_the_environment() -> None:
    """Everything else is given its settings: what reads the environment itself cannot be tested or trusted."""
    wrong = [
        module.at(node)
        for module in modules()
        if module.name.rpartition(".")[2] not in ("settings", "run") and not module.is_in(["carrel.cli", "carrel.demo"])
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "getenv")
    ]
    assert not wrong


def test_every_module_says_what_it_is_for() -> None:
    assert not [module.name for module in modules() if not ast.get_docstring(module.tree)]


def test_modules_stay_small_enough_to_be_read() -> None:
    lines = {module.name: len(module.path.read_text().splitlines()) for module in modules()}
    assert not {name: count for name, count in lines.items() if count > 500}
