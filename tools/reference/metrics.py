"""metrics.md: each Prometheus metric, as it is written where it is made.

A metric is a call of prometheus_client, or of a function of ours that returns a metric, whose first argument is a
literal that begins with `carrel_`. The second argument is its help. A metric whose name or help is computed is reported
as undocumented.
"""

import ast
from functools import cache

from tools.reference import Page, code, document, table
from tools.reference.source import COMPONENTS, Module, argument, called, component, modules, text

KINDS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "Summary": "summary",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
}


def page() -> Page:
    sections: dict[str, list[list[str]]] = {}
    missing: list[str] = []
    for module in modules():
        known = module.constants()
        for call in module.calls():
            row = _row(module, call, known, missing)
            if row:
                sections.setdefault(component(module) or module.folder, []).append(row)
    names = dict.fromkeys((*COMPONENTS.values(), *sections))
    parts = [
        f"## {_title(name)}\n\n" + table(["metric", "kind", "labels", "meaning"], sorted(sections[name]))
        for name in names
        if name in sections
    ]
    introduction = (
        "Each component that runs in the cluster shows its metrics at `/metrics`, in base units and without a"
        " person's name in any label. A counter is shown with `_total` at its end, a histogram as"
        " `_bucket`, `_sum` and `_count`."
    )
    return Page("metrics.md", document("Metrics", introduction, *parts), tuple(missing))


def _title(name: str) -> str:
    return f"carrel {name}" if name in COMPONENTS.values() else "every component"


def _row(module: Module, call: ast.Call, known: dict[str, str], missing: list[str]) -> list[str] | None:
    function = called(call)
    name, help_text = text(argument(call, 0, "name"), known), text(argument(call, 1, "documentation"), known)
    if not name.startswith("carrel_"):
        if function in KINDS and _is_of_prometheus(module, function) and not _is_in_function(module, call):
            missing.append(f"{module.place}:{call.lineno}: the name of a metric is not written out")
        return None
    if function not in KINDS:
        function = _returned(function)
    if function not in KINDS:
        return None
    if not help_text:
        missing.append(f"{module.place}:{call.lineno}: {name} has no help that is written out")
    labels = argument(call, 2, "labelnames", "labels")
    words = [text(each) for each in labels.elts] if isinstance(labels, ast.List | ast.Tuple) else [text(labels)]
    shown = f"{name}_total" if KINDS[function] == "counter" and not name.endswith("_total") else name
    return [code(shown), KINDS[function], " ".join(code(word) for word in words if word), help_text]


def _is_of_prometheus(module: Module, name: str) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("prometheus_client")
        and any((alias.asname or alias.name) == name for alias in node.names)
        for node in ast.walk(module.tree)
    )


def _functions(module: Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)]


def _is_in_function(module: Module, call: ast.Call) -> bool:
    """In one that returns a metric: whoever calls that writes the name out."""
    return any(
        call in ast.walk(function) and ast.unparse(function.returns or ast.Constant(None)) in KINDS
        for function in _functions(module)
    )


@cache
def _helpers() -> dict[str, str]:
    """Functions that return a metric → the class of the metric."""
    return {
        function.name: ast.unparse(function.returns)
        for module in modules()
        for function in _functions(module)
        if function.returns is not None and ast.unparse(function.returns) in KINDS
    }


def _returned(name: str) -> str:
    return _helpers().get(name, "")
