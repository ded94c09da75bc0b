"""The rules about imports, in sentences. A component is a folder of `src/carrel` that runs as a process of its own."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[2]
EMBEDDED_API = ROOT / "packages" / "kubernetes_in_memory"
SOURCES = (ROOT / "src", EMBEDDED_API / "src")

PURE_PACKAGES = (
    "carrel.ids",
    "carrel.ledger",
    "carrel.dialects",
    "carrel.parsing",
    "carrel.kubernetes.objects",
    "carrel.simulation",
)
"""Decide and read; no I/O, no clock, no library but a small pure one."""

PURE_MODULES = (
    "carrel.bookings.advice",
    "carrel.bookings.calendar",
    "carrel.bookings.capacity",
    "carrel.bookings.groups",
    "carrel.bookings.icalendar",
    "carrel.bookings.notifications.buttons",
    "carrel.bookings.notifications.choices",
    "carrel.bookings.notifications.messages",
    "carrel.bookings.notifications.posts",
    "carrel.bookings.notifications.quiet_hours",
    "carrel.bookings.people",
    "carrel.bookings.records",
    "carrel.bookings.maintenance",
    "carrel.bookings.rules",
    "carrel.bookings.usage.counter",
    "carrel.bookings.usage.figures",
    "carrel.bookings.usage.sums",
    "carrel.cli.recent_minutes",
    "carrel.configuration.fields",
    "carrel.configuration.gpu_memory",
    "carrel.configuration.schema",
    "carrel.jupyterhub.hand_over",
    "carrel.jupyterhub.profiles",
    "carrel.jupyterhub.startable",
    "carrel.node.device_names",
    "carrel.node.memory_mode_decision",
    "carrel.node.simulated_activity",
    "carrel.resource_claims.allocation.allocation_words",
    "carrel.resource_claims.dra",
    "carrel.resource_claims.gate.allocation_retries",
    "carrel.resource_claims.objects",
    "carrel.resource_claims.shadows.shadow_words",
)
"""The decisions of a component, beside the code that acts on them."""

COMPONENTS = ("admission", "bookings", "lifecycle", "node", "scheduling")

LEVELS = (
    ("carrel.process",),
    ("carrel.settings", "carrel.caller_settings"),
    ("carrel.resource_claims",),
    ("carrel.cluster",),
    ("carrel.kubernetes", "carrel.http", "carrel.manifests"),
    ("carrel.configuration",),
    ("carrel.cluster_file",),
    ("carrel.dialects",),
    (
        "carrel.kubernetes.objects",
        "carrel.command_errors",
        "carrel.live_screen",
        "carrel.log_lines",
        "carrel.option_fields",
    ),
    ("carrel.ledger", "carrel.parsing"),
    ("carrel.ids",),
    ("carrel",),
)
"""What every component may use, the highest first: each imports what is below it, as in the drawing of
`ARCHITECTURE.md`. `carrel` itself is the version."""

SHARED = tuple(package for level in LEVELS for package in level)

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "carrel.parsing": (),
    "carrel.ids": (),
    "carrel.ledger": ("carrel.ids",),
    "carrel.kubernetes.objects": ("carrel.ids", "carrel.parsing"),
    "carrel.kubernetes": ("carrel", "carrel.ids", "carrel.parsing"),
    "carrel.dialects": ("carrel.ids", "carrel.ledger", "carrel.parsing", "carrel.kubernetes.objects"),
    "carrel.configuration": ("carrel.dialects", "carrel.ledger", "carrel.parsing"),
    "carrel.http": ("carrel.parsing",),
    "carrel.cluster_file": ("carrel.dialects", "carrel.ids", "carrel.ledger", "carrel.parsing"),
    "carrel.cluster": (
        "carrel.configuration",
        "carrel.dialects",
        "carrel.ids",
        "carrel.kubernetes",
        "carrel.ledger",
        "carrel.parsing",
    ),
    "carrel.resource_claims": (
        "carrel.cluster",
        "carrel.dialects",
        "carrel.ids",
        "carrel.kubernetes",
        "carrel.ledger",
        "carrel.parsing",
    ),
    "carrel.resource_claims.gate": ("carrel.resource_claims", *SHARED, "carrel.admission.review"),
    "carrel.resource_claims.node": (
        "carrel.resource_claims",
        *SHARED,
        "carrel.node.claim_driver",
        "carrel.node.interfaces",
        "carrel.node.lease_check",
        "carrel.node.settings",
    ),
    "carrel.manifests": (),
    "carrel.command_errors": ("carrel.parsing",),
    "carrel.log_lines": ("carrel.parsing",),
    "carrel.live_screen": (),
    "carrel.option_fields": (),
    "carrel.process": (
        "carrel.cluster",
        "carrel.configuration",
        "carrel.http",
        "carrel.command_errors",
        "carrel.kubernetes",
        "carrel.log_lines",
        "carrel.parsing",
        "carrel.settings",
    ),
    "carrel.caller_settings": (
        "carrel.command_errors",
        "carrel.configuration",
        "carrel.http",
        "carrel.option_fields",
        "carrel.parsing",
    ),
    "carrel.settings": (
        "carrel.cluster",
        "carrel.command_errors",
        "carrel.configuration",
        "carrel.resource_claims",
        "carrel.dialects",
        "carrel.kubernetes",
        "carrel.ledger",
        "carrel.option_fields",
        "carrel.parsing",
    ),
    **{f"carrel.{component}": (*SHARED, "carrel.bookings.client") for component in COMPONENTS},
    "carrel.bookings.client": SHARED,
    "carrel.jupyterhub": ("carrel.dialects",),
    "carrel.simulation": ("carrel.configuration", "carrel.ids", "carrel.ledger", "carrel.parsing", *PURE_MODULES),
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
"""Package → what it may import besides itself."""

PUT_TOGETHER = ("carrel.demo", "carrel.__main__")
"""These import anything but each other: nothing imports `cli` and `demo` but `__main__`."""

LIBRARIES = {
    "aiohttp": ("carrel.bookings", "carrel.cli", "carrel.demo", "carrel.kubernetes", "kubernetes_in_memory"),
    "aiosqlite": ("carrel.bookings.store",),
    "alembic": ("carrel.bookings.store",),
    "cryptography": ("carrel.admission", "carrel.kubernetes", "kubernetes_in_memory"),
    "fastapi": ("carrel.bookings",),
    "google": ("carrel.node.kubelet.grpc_stubs", "carrel.resource_claims.node.grpc_stubs"),
    "grpc": ("carrel.node.kubelet", "carrel.resource_claims.node"),
    "grpc_tools": (),
    "httptools": (),
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
    "rich": ("carrel.cli", "carrel.demo", "carrel.live_screen"),
    "sqlalchemy": ("carrel.bookings.store",),
    "starlette": ("carrel",),
    "typer": ("carrel", "kubernetes_in_memory"),
    "uvicorn": ("carrel.http", "kubernetes_in_memory"),
    "uvloop": ("carrel.process",),
    "yarl": ("carrel.bookings.notifications", "carrel.kubernetes"),
    "yaml": ("carrel", "kubernetes_in_memory"),
}
"""Where each library may appear: what is used in one place can be replaced there."""

PURE_LIBRARIES = {
    "carrel.kubernetes.objects": ("msgspec",),
    "carrel.dialects": ("msgspec",),
    "carrel.jupyterhub": ("msgspec",),
    "carrel.resource_claims": ("msgspec",),
    "carrel.simulation": ("msgspec",),
}
"""Decodes JSON into typed objects; it does no I/O."""

PURE_STANDARD_LIBRARY = {
    *("abc", "base64", "bisect", "collections", "contextlib", "csv", "dataclasses", "datetime", "enum", "fractions"),
    *("functools", "hashlib", "heapq", "hmac", "html", "itertools", "json", "math", "random", "re", "shlex"),
    *("statistics", "sys", "textwrap", "types", "typing", "unicodedata", "uuid", "zlib", "zoneinfo"),
}
"""What pure code uses of the standard library. More may be added if it does no I/O and reads no clock."""

IMPURE_CALLS = {"now", "utcnow", "today", "open", "print", "input", "uuid1", "uuid4", "SystemRandom"}

LIBRARIES_OF_A_HUB = {"jupyterhub", "kubernetes_asyncio", "kubespawner", "msgspec", "tornado", "traitlets"}
"""What the image of a hub has, and msgspec."""

READ_THE_ENVIRONMENT = {
    "carrel.settings": "options may be given as variables",
    "carrel.option_fields": "secrets are given as variables only",
    "carrel.node.reservation": "which GPU the device plugin gave to this container",
    "carrel.node.nvidia.visible_gpu": "the same, to say it",
    "carrel.cli.booking_client": "where a person's configuration lies",
    "carrel.demo.component_processes": "is handed on to the processes that it starts",
}
"""Module → what it reads there."""

FOREIGN_WORDS = (
    "aliyun.accelerator",
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
    "hami.io/",
    "kai.scheduler/",
    "cloud.google.com/",
    "k8s.amazonaws.com/",
    "karpenter.k8s.aws/",
    "karpenter.sh/",
    "kubernetes.azure.com/",
    "carrel.dev/",
)
OF_KUBERNETES = ("k8s.io/", "kubernetes.io/")
"""Words of Kubernetes itself, which are no dialect."""


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module

    def at(self, node: ast.expr | ast.stmt) -> str:
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
    return frozenset(module.name for module in modules())


@cache
def modules() -> list[Module]:
    return [read(path, source) for source in SOURCES for path in sorted(source.rglob("*.py"))]


def read(path: Path, source: Path) -> Module:
    """Return a module by the name that it has for who imports it with `source` on the path."""
    name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
    return Module(name, path, ast.parse(path.read_text()))


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


def test_every_module_has_rules() -> None:
    rows = (*MAY_IMPORT, *PUT_TOGETHER)

    assert not [module.name for module in modules() if not module.is_in(rows) and module.name != "carrel"]


def test_shared_folders_import_only_what_is_below_them_and_no_component() -> None:
    level = {package: number for number, packages in enumerate(LEVELS) for package in packages}
    rows = {package: MAY_IMPORT.get(package, ()) for package in SHARED}

    assert not [f"{package} may import {name}" for package, row in rows.items() for name in row if name not in level]
    wrong = [(package, name) for package, row in rows.items() for name in row if level[name] <= level[package]]
    assert not [f"{name} is not below {package}" for package, name in wrong]


def test_nothing_imports_the_commands_or_the_demo_but_the_main_command() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        if module.name != "carrel.__main__"
        for name in module.imports()
        for package in ("carrel.cli", "carrel.demo", "carrel.__main__")
        if is_in(name, [package]) and not module.is_in([package])
    ]
    assert not wrong


def test_what_programs_ask_of_the_booking_service_needs_no_pages() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        if module.name != "carrel.bookings.app" and not module.is_in(["carrel.bookings.pages"])
        for name in module.imports()
        if is_in(name, ["carrel.bookings.pages"])
    ]
    assert not wrong


def test_the_module_for_a_hub_imports_the_libraries_of_a_hub_and_msgspec() -> None:
    """Also what it imports of Carrel: the dialects, and what they import."""
    wrong = [
        f"{module.name} imports {name}"
        for module in modules()
        if module.is_in(["carrel.jupyterhub", "carrel.dialects", *MAY_IMPORT["carrel.dialects"]])
        for name in module.imports()
        if name.split(".")[0] not in sys.stdlib_module_names | LIBRARIES_OF_A_HUB | {"carrel"}
    ]
    assert not wrong


def test_the_embedded_api_and_its_tests_know_nothing_of_carrel() -> None:
    """Its tests may use modules of `tests/kit` that import nothing of Carrel either."""
    found = [read(path, ROOT) for path in sorted(EMBEDDED_API.rglob("*.py"))]
    kit = sorted({name for module in found for name in module.imports() if name.startswith("tests.")})
    found += [read(ROOT / f"{name.replace('.', '/')}.py", ROOT) for name in kit]

    assert {"tests", "src"} <= {module.name.split(".")[2] for module in found}
    assert not [f"{module.name} imports {name}" for module in found for name in module.imports() if is_of_carrel(name)]


def is_of_carrel(name: str) -> bool:
    return name.split(".")[0] == "carrel"


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
    wrong = []
    for module in modules():
        if not module.is_in((*PURE_PACKAGES, *PURE_MODULES)):
            continue
        used = {name.split(".")[0] for name in module.imports()} & sys.stdlib_module_names
        wrong += [f"{module.name} imports {name}" for name in sorted(used - PURE_STANDARD_LIBRARY)]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in IMPURE_CALLS:
                wrong.append(f"{module.at(node)} calls {ast.unparse(node.func)}")
            elif _uses_randomness(node):
                wrong.append(f"{module.at(node)} may only use a `Random` that is passed in")
    assert not wrong


def _uses_randomness(node: ast.AST) -> TypeGuard[ast.expr | ast.stmt]:
    if isinstance(node, ast.ImportFrom):
        return node.module == "random" and {alias.name for alias in node.names} != {"Random"}
    return isinstance(node, ast.Import) and "random" in {alias.name for alias in node.names}


def test_what_a_reading_order_calls_pure_is_pure() -> None:
    """A folder's rules or decisions, marked in its `__init__.py`."""
    marked = [
        f"{module.name}.{name.rstrip('/')}"
        for module in modules()
        if module.path.name == "__init__.py" and module.name != "carrel"
        for line in (ast.get_docstring(module.tree) or "").splitlines()
        if (row := re.match(r" {4}(\w+/?(?: \w+/?)*) {2,}PURE: ", line))
        for name in row[1].split()
    ]
    assert marked
    assert not [name for name in marked if not is_in(name, (*PURE_PACKAGES, *PURE_MODULES))]


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
    """`resource_claims.dra` is the dialect of ResourceClaims, which is loaded only where they are counted."""
    wrong = [
        f"{module.at(node)} spells {word}"
        for module in modules()
        if not module.is_in(["carrel.dialects", "carrel.resource_claims.dra"]) and not is_generated(module)
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
    readers = {module.name for module in modules() if module.path.is_relative_to(SOURCES[0]) and _reads(module)}

    assert readers == READ_THE_ENVIRONMENT.keys()


def _reads(module: Module) -> bool:
    """Whether it uses `os.environ` or the like, by whatever import."""
    words = {"environ", "environb", "getenv", "getenvb"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in words and ast.unparse(node.value) != "self")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and any(each.name in words for each in node.names))
        for node in ast.walk(module.tree)
    )


def test_every_domain_of_a_dialect_is_a_foreign_word() -> None:
    domains = {
        domain
        for module in modules()
        if module.is_in(["carrel.dialects"])
        for node in strings(module.tree)
        for domain in re.findall(r"(?<![\w.@-])((?:[a-z0-9-]+\.)+[a-z]+/)", str(node.value))
    }
    assert "nvidia.com/" in domains
    assert not [domain for domain in sorted(domains) if not _is_known(domain)]


def _is_known(domain: str) -> bool:
    return domain.endswith(OF_KUBERNETES) or any(word in domain for word in FOREIGN_WORDS)


def test_every_module_says_what_it_is_for() -> None:
    assert not [module.name for module in modules() if not ast.get_docstring(module.tree)]


def test_modules_stay_small_enough_to_be_read() -> None:
    lines = {module.name: len(module.path.read_text().splitlines()) for module in modules()}
    assert not {name: count for name, count in lines.items() if count > 500}
