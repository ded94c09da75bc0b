"""Loads manifests into a new API server: every document of every file, in order, with its status if it has one.

The output of `kubectl get -o yaml` can be loaded unchanged. Every failure is reported, with its file and place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.messages import HttpRequest

Json = dict[str, Any]

GIVEN_BY_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


@dataclass(slots=True)
class LoadResult:
    count: int = 0
    problems: list[str] = field(default_factory=list)


async def load(api: EmbeddedApi, files: Sequence[Path]) -> LoadResult:
    loaded = LoadResult()
    for path in files:
        for place, document in _documents(path, loaded.problems):
            problem = await _create(api, document)
            if problem:
                loaded.problems.append(f"{path}, {place}: {problem}")
            else:
                loaded.count += 1
    return loaded


def _documents(path: Path, problems: list[str]) -> Iterator[tuple[str, Json]]:
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(f"{path}: not YAML: {error}")
        return
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        if not isinstance(document, dict):
            problems.append(f"{path}, document {number}: an object with apiVersion and kind is expected")
        elif document.get("kind") == "List":
            yield from ((f"document {number}, item {at}", item) for at, item in enumerate(document.get("items", ()), 1))
        else:
            yield f"document {number}", document


async def _create(api: EmbeddedApi, document: Json) -> str:
    """Returns an empty text, or what is wrong."""
    kind = api.kinds.of_object(str(document.get("apiVersion", "")), str(document.get("kind", "")))
    if kind is None:
        return api.kinds.why_not(str(document.get("apiVersion", "")), str(document.get("kind", "")))
    metadata = {key: value for key, value in (document.get("metadata") or {}).items() if key not in GIVEN_BY_THE_SERVER}
    base = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    where = f"/namespaces/{metadata.get('namespace', 'default')}" if kind.namespaced else ""
    path = f"{base}{where}/{kind.plural}"
    problem, made = await _send(api, "POST", path, {**document, "metadata": metadata}, "application/json")
    if problem or not kind.has_status or not document.get("status"):
        return problem
    patch = {"status": document["status"]}
    problem, _ = await _send(
        api, "PATCH", f"{path}/{made['metadata']['name']}/status", patch, "application/merge-patch+json"
    )
    return problem


async def _send(api: EmbeddedApi, method: str, path: str, body: Json, media_type: str) -> tuple[str, Json]:
    request = HttpRequest(
        method, path, {"fieldValidation": "Strict"}, {"content-type": media_type}, msgspec.json.encode(body)
    )
    answer = await api.send(request)
    content = msgspec.json.decode(answer.body)
    return (content["message"] if answer.status >= 400 else ""), content
