"""Whoever may ask why a pod waits may read the configuration: the roles that are installed for people allow both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.manifests import rbac
from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.auth import ADMIN
from kubernetes_in_memory.http_server import serve
from kubernetes_in_memory.messages import HttpResponse, RequestLike
from kubernetes_in_memory.request_info import call_of
from kubernetes_in_memory.status import ApiError
from kubernetes_in_memory.store import encode
from tests.kit.carrel_command import carrel
from tests.kit.configuration import config_file, configure
from tests.kit.configuring import configuring_on
from tests.kit.gpus import a_node
from tests.kit.lab import a_lab

Right = tuple[str, str, str, str, str]
"""Namespace (empty: the whole cluster), API group, resource, verb, name of the one object (empty: any)."""


def of_readers() -> Iterator[Right]:
    for role in rbac():
        if role["metadata"]["name"] == "carrel-reader":
            for rule in role["rules"]:
                for name in rule.get("resourceNames", ("",)):
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            where = role["metadata"].get("namespace", "")
                            yield where, rule["apiGroups"][0], resource, verb, name


class ForReaders:
    """The API of the lab for somebody who has these roles and no other."""

    def __init__(self, api: EmbeddedApi) -> None:
        self._api = api
        self._rights = frozenset(of_readers())

    async def send(self, request: RequestLike, /) -> HttpResponse:
        try:
            self._check(request)
        except ApiError as error:
            return HttpResponse(error.code, encode(error.status()))
        return await self._api.send(request)

    def _check(self, request: RequestLike) -> None:
        """Raises `ApiError`."""
        if request.path == "/version":  # which everybody may read
            return
        call = call_of(request, self._api.kinds, ADMIN)
        selected = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        names, places = {"", call.target.name or selected}, {"", call.target.namespace}
        asked = {(each, call.kind.group, call.kind.plural, call.verb, name) for each in places for name in names}
        if not asked & self._rights:
            raise ApiError(403, "Forbidden", f"{call.kind.plural} is forbidden: a reader may not {call.verb} it")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("why", "pod/train", "-n", "lab"), "No node has 64 GPUs", id="why a pod waits"),
        pytest.param(("gpus",), "n1", id="who holds what"),
        pytest.param(("config", "show"), "tiers.victims", id="what is configured"),
        pytest.param(("config", "history"), "the first one", id="what was changed"),
        pytest.param(("config", "diff", "FILE"), "tiers.victims", id="what a file would change"),
    ],
)
async def test_a_reader_may(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    async with (
        a_lab([a_node("n1")], in_real_time=True) as lab,
        lab.replica() as replica,
        serve(ForReaders(lab.api)) as api,
    ):
        await configure(lab.client, "tiers: {victims: random}")
        await configuring_on(replica).round()
        await lab.pod("train", limits={"nvidia.com/gpu": "64"})
        named = [config_file(tmp_path) if word == "FILE" else word for word in words]
        found = await carrel(*named, "--server", api.url)
    assert (found.code, found.err) == (0, "")
    assert said in found.out


async def test_a_reader_changes_nothing() -> None:
    async with a_lab([a_node("n1")], in_real_time=True) as lab, serve(ForReaders(lab.api)) as api:
        await configure(lab.client, "{}")
        found = await carrel("config", "set", "tiers.victims", "random", "--reason", "x", "--server", api.url)
    assert found.code == 7 and "Not allowed" in found.err
