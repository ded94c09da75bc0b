"""http-api.md: the booking service by its OpenAPI document; the routes of the other components by their code.

A route that OpenAPI does not know is a literal path: the first argument of `Route`, the key of a dictionary of POST
routes, or the path of a page. What each is for stands in `MEANINGS`, because such a route has no field for it.
"""

import ast
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

from carrel.bookings.app import fastapi_app
from tools.reference import Page, code, document, table
from tools.reference.source import COMPONENTS, Module, argument, called, modules, text

MEANINGS = {
    "GET /healthz": "The process runs.",
    "GET /readyz": "503 with the reason while it cannot answer yet, such as before the cluster has been read.",
    "GET /metrics": "For Prometheus: [metrics.md](metrics.md).",
    "GET /version": "The version of Carrel, as text.",
    "POST /carrel/filter": "kube-scheduler: which of these nodes have room for the pod, and why the others have not.",
    "POST /carrel/prioritize": "kube-scheduler: a score for each of these nodes; the best has the highest score alone."
    " Where GPUs are linked worse than on the best node, for a pod that asks for links, it is 0.",
    "POST /carrel/bind": "kube-scheduler: take GPUs on this node for the pod, and bind it.",
    "POST /gpushare-scheduler/filter": "The same as `/carrel/filter`, at gpushare's address, for gpushare's pods.",
    "POST /gpushare-scheduler/bind": "The same as `/carrel/bind`, at gpushare's address.",
    "GET /gpushare-scheduler/inspect": "Who holds how much of each GPU, as `kubectl inspect gpushare` reads it.",
    "GET /gpushare-scheduler/inspect/{node}": "The same, of one node.",
    "POST /mutate": "kube-apiserver: an AdmissionReview of a pod; also the path of MAIA's webhook.",
    "POST /random-delete": "MAIA: ends one pod that may be ended.",
    "GET /get-expired-pods": "MAIA: the names of the pods that may be ended.",
    "POST /delete-expired-pod": "MAIA: ends the pod with this `pod_name` and `namespace`, if it may be ended.",
    "POST /maia-api/gpu-schedulability/": "MAIA: has this person a booking that is active; or make a booking.",
    "POST /maia-api/gpu-schedulability": "The same.",
    "POST /maia/gpu-booking/gpu-schedulability/": "The same, at MAIA's older address.",
    "POST /maia/gpu-booking/gpu-schedulability": "The same.",
    "GET /maia-api/gpu-stats/": "MAIA: how many GPUs of each model are free.",
    "GET /maia-api/gpu-stats": "The same.",
    "GET /maia/resources/gpu_status_summary/": "The same, at MAIA's older address.",
    "GET /maia/resources/gpu_status_summary": "The same.",
    "GET /": "The home page: your bookings, and what is free.",
    "GET /timeline": "The calendar of all GPUs, and a form to book.",
    "GET /timeline/table": "The calendar as a table.",
    "GET /timeline/verdict": "What the rules say about the booking in the form; a part of the page.",
    "POST /timeline": "Book what the form says.",
    "GET /bookings/{id}": "One booking.",
    "GET /bookings/{id}/verdict": "What the rules say about a change; a part of the page.",
    "GET /bookings/{id}/booking.ics": "The booking, for a calendar (RFC 5545).",
    "POST /bookings/{id}/change": "Change a booking.",
    "POST /bookings/{id}/cancel": "Cancel a booking.",
    "GET /map": "Every GPU and who holds how much of it, live.",
    "GET /map/stream": "The map's changes, as server-sent events.",
    "GET /map/gpus/{uuid:path}": "One GPU; a part of the page.",
    "GET /usage": "Who booked and used how much.",
    "GET /usage.csv": "The same, as CSV.",
    "GET /admin": "Maintenance, roles and the log, for admins of the lab.",
    "GET /account": "Who you are, in which zone you see times, and how you are told things.",
    "POST /account": "Choose the zone in which you see times: an IANA name, or nothing for the lab's.",
    "POST /account/messages": "Choose by which channels you are told, and of what.",
    "POST /account/messages/test": "Send yourself a test message by a channel.",
    "GET /act/{secret}": "What a button in a message will do. Opening it changes nothing; no sign-in is needed.",
    "POST /act/{secret}": "Do it, once.",
    "GET /admin/configuration": "Every field of the configuration, with its value, its reason and where it comes from.",
    "POST /admin/configuration": "Change rules of bookings and tiers, with a reason; or see what that would break.",
    "POST /admin/groups": "Say who is a member or a manager of a group.",
    "GET /admin/log": "The log, by person, action and time.",
    "GET /admin/log.csv": "The same as a table for spreadsheets.",
    "GET /admin/people/{email}": "What removing a person would end.",
    "POST /admin/people/{email}": "Remove a person.",
    "GET /admin/maintenance": "Plan maintenance: nodes, GPUs or a model, and whom it hits.",
    "GET /admin/maintenance/hit": "The part of that page that says whom it hits.",
    "POST /admin/maintenance": "Take GPUs out of the calendar for a time.",
    "POST /admin/maintenance/{id}": "End a maintenance.",
    "POST /admin/roles": "Give a person a role, or take it away.",
    "POST /feed": "Make the secret address of your calendar feed.",
    "POST /feed/revoke": "End the secret address of your calendar feed.",
    "GET /sign-in": "Begin to sign in with the identity provider.",
    "GET /sign-in/callback": "Where the identity provider sends the browser back to.",
    "GET /oauth_callback": "Where JupyterHub sends the browser back to.",
    "GET /signed-out": "After signing out, where people sign in with JupyterHub.",
    "POST /sign-in/dev": "Say who you are; only with `--dev`.",
    "POST /sign-out": "End the session.",
    "GET /cli-login": "Ask whether `carrel login` may act for you.",
    "POST /cli-login": "Allow it.",
    "GET /favicon.ico": "The icon.",
    "GET /static": "Style sheets and scripts of the pages.",
}
"""Route → what it is for."""

METHODS = {"get": "GET", "post": "POST", "put": "PUT", "delete": "DELETE", "patch": "PATCH"}
FOR_EVERY_COMPONENT = "http"


def page() -> Page:
    service = MagicMock()  # the document needs the routes only; nothing is called
    service.authenticator.options.base_path = ""
    openapi = fastapi_app(service).openapi()
    routes: dict[str, list[str]] = {}
    for module in modules():
        if module.folder in (*COMPONENTS, FOR_EVERY_COMPONENT):
            found = routes.setdefault(COMPONENTS.get(module.folder, module.folder), [])
            found += [each for each in _routes(module) if each not in found]
    written = [route for found in routes.values() for route in found]
    missing = [
        f"{route}: tools/reference/http_api.py has no meaning for it" for route in written if route not in MEANINGS
    ]
    missing += [f"{route}: has a meaning, and no code" for route in MEANINGS if route not in written]
    missing += [
        f"{method.upper()} {path} has no summary"
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
        if not _summary(operation)
    ]
    order = [*(name for name in routes if name != "http"), "http"]
    parts = [_section(name, routes[name]) for name in order if routes.get(name)]
    introduction = (
        "The booking service serves this document in full, with all fields, at `/api/v1/openapi.json`. Its API is for"
        " programs and for commands such as `carrel book`; refusals are `application/problem+json` (RFC 9457). The"
        " routes of the other components are for Kubernetes, for Prometheus and for tools of the peers."
    )
    return Page("http-api.md", document("HTTP API", introduction, _api(openapi), *parts), tuple(missing))


def _section(name: str, routes: list[str]) -> str:
    title = {"booking": "carrel booking: pages, sign-in and MAIA's addresses", "http": "every component"}
    rows = [[code(route), MEANINGS.get(route, "")] for route in sorted(routes, key=lambda each: each.split()[::-1])]
    return f"## {title.get(name, f'carrel {name}')}\n\n" + table(["route", "meaning"], rows)


def _api(openapi: dict[str, Any]) -> str:
    rows = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            parameters = [
                code(each["name"]) + (" (required)" if each.get("required") and each["in"] != "path" else "")
                for each in operation.get("parameters", ())
                if each["in"] != "path"
            ]
            content = operation.get("requestBody", {}).get("content", {})
            names = [_schema(each["schema"]) for each in content.values()]
            rows.append(
                [code(f"{method.upper()} {path}"), _summary(operation), ", ".join([*parameters, *filter(None, names)])]
            )
    return "## carrel booking: the API\n\n" + table(["route", "meaning", "parameters and body"], rows)


def _summary(operation: dict[str, Any]) -> str:
    """FastAPI makes a summary of the function's name where none is given: such a one says nothing."""
    made = str(operation["operationId"]).split("_api_v1")[0].replace("_", " ")
    given = str(operation.get("summary", ""))
    told = str(operation.get("description", "")).partition("\n\n")[0]
    return " ".join((told if given.lower() == made.lower() else f"{given}. {told}" if told else given).split())


def _schema(schema: dict[str, Any]) -> str:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return f"body {code(name)}" if name else ""


def _routes(module: Module) -> Iterator[str]:
    """Those that the OpenAPI document does not know."""
    in_document = set(_documented_routers(module))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Dict):
            paths = [text(key) for key in node.keys]
            if paths and all(path.startswith("/") for path in paths):
                yield from (f"POST {path}" for path in paths)
            elif paths and all(path.startswith(("GET /", "POST /")) for path in paths):
                yield from paths  # of a page
        elif isinstance(node, ast.Call):
            path, name = text(argument(node, 0, "path")), called(node)
            router = ast.unparse(node.func).split(".")[0]
            if not path.startswith("/") or router in in_document:
                continue
            if name in ("Route", "add_api_route", "mount"):
                methods = argument(node, 9, "methods")
                words = [text(each) for each in methods.elts] if isinstance(methods, ast.List) else ["GET"]
                yield from (f"{method} {path}" for method in words)
            elif name in METHODS and router in ("router", "app"):
                yield f"{METHODS[name]} {path}"


def _documented_routers(module: Module) -> Iterator[str]:
    """The variables of a module that are routers of the API."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and called(node.value) == "APIRouter":
            is_hidden = any(keyword.arg == "include_in_schema" for keyword in node.value.keywords)
            if not is_hidden:
                yield ast.unparse(node.targets[0])
