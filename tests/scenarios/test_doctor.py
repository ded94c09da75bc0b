"""`carrel doctor`: each hop that is broken is named, with what to do; what is well is said to be."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from carrel.cli.checks.finding import Check, Finding, HopState, Installation, ok
from carrel.cli.checks.table import CHECKS, findings
from carrel.cli.doctor import lines
from carrel.cluster.configuration_record import APPLIED
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import JsonPatch, MergePatch
from carrel.kubernetes.objects.resources import (
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CRDS,
    LEASES,
    MUTATING_WEBHOOKS,
    PRIORITY_CLASSES,
)
from carrel.kubernetes.transport import ApiRequest
from carrel.manifests import crds, priority_classes, rbac, webhooks
from carrel.parsing.time import micro_seconds, seconds
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.auth import ADMIN, AccessRequest, UserInfo
from tests.kit.configuration import configure
from tests.kit.gpus import a_node
from tests.kit.installation import InstalledLab
from tests.kit.lab import OURS, Lab, a_lab
from tests.kit.limited_pods import says

PAGE = Path(__file__).parents[2] / "docs/doctor.md"


async def seen(lab: Lab) -> dict[str, Finding]:
    """Hop → the worst that was found."""
    found = await findings(Installation(lab.client, OURS, lab.clock))
    order = list(HopState)
    return {each.hop: each for each in sorted(found, key=lambda each: order.index(each.state))}


async def lead(lab: Lab, name: str, seconds_ago: int, namespace: str = OURS) -> None:
    renewed = micro_seconds(lab.clock.now - timedelta(seconds=seconds_ago))
    spec = {"holderIdentity": "replica-1_uid", "renewTime": renewed, "leaseDurationSeconds": 15}
    await lab.client.create(
        LEASES,
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec},
        namespace,
    )


# --- the table -------------------------------------------------------------------------------------------------------


async def test_where_only_the_definitions_are_installed_everything_else_is_named_with_what_to_do() -> None:
    async with a_lab([a_node("n1")]) as lab:
        sees_containers = MergePatch({"status": {"orphans": []}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", sees_containers, subresource="status")
        found = await seen(lab)
    failed = {hop for hop, each in found.items() if each.state is HopState.FAIL}
    assert failed == {
        "policies",
        "webhook",
        "admission",
        "gpu-scheduler",
        "carrel-controller",
        "components",
        "configuration",
    }
    assert {found[hop].state for hop in ("API server", "definitions", "node n1")} == {HopState.OK}
    assert "MutatingWebhookConfiguration carrel is missing" in found["webhook"].text
    assert "does not ask the webhook" in found["admission"].text
    assert all(each.page and (each.advice or each.state is HopState.OK) for each in found.values())


async def test_a_check_that_fails_or_never_ends_does_not_end_the_others() -> None:
    async def crashes(of: Installation) -> Sequence[Finding]:
        raise KeyError("spec")

    async def crashes_in_a_group(of: Installation) -> Sequence[Finding]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(crashes(of))
        return []

    async def never_ends(of: Installation) -> Sequence[Finding]:
        await asyncio.Event().wait()
        return []

    async def is_well(of: Installation) -> Sequence[Finding]:
        return [ok("well")]

    checks = [
        Check("first", crashes),
        Check("second", crashes_in_a_group),
        Check("third", never_ends, limit_s=0.01),
        Check("fourth", is_well),
    ]
    async with a_lab([]) as lab:
        found = await findings(Installation(lab.client, OURS, lab.clock), checks)
    assert [(each.hop, each.state.value) for each in found] == [
        ("first", "FAIL"),
        ("second", "FAIL"),
        ("third", "FAIL"),
        ("fourth", "OK"),
    ]
    assert [each.text for each in found[:3]] == [
        "the check itself failed: KeyError: 'spec'",
        "the check itself failed: KeyError: 'spec'",
        "no answer within 0 s",
    ]


@dataclass
class WithToken:
    """Who calls."""

    api: EmbeddedApi
    token: str

    async def send(self, request: ApiRequest) -> Any:
        return await self.api.send(
            replace(request, headers={**request.headers, "authorization": f"Bearer {self.token}"})
        )

    async def aclose(self) -> None: ...


async def test_what_the_caller_may_not_look_at_is_a_warning_with_the_right_that_is_missing() -> None:
    ada = UserInfo("ada", groups=("system:authenticated",))

    def may(asked: AccessRequest) -> bool:
        return asked.path == "/version"

    api = EmbeddedApi(Settings(tokens={"ada": ada, "admin": ADMIN}, may=may))
    for each in crds():
        await Client(WithToken(api, "admin")).create(CRDS, each)
    async with a_lab([]) as lab:
        found = await findings(Installation(Client(WithToken(api, "ada")), OURS, lab.clock))
    but = ("API server", "clocks", "policies")  # the embedded API has no policies
    assert {each.hop: each.state for each in found if each.hop not in but and each.state is not HopState.WARN} == {}
    assert len(found) >= len(CHECKS) - 1  # without --probe the last says nothing
    definitions = next(each for each in found if each.hop == "definitions")
    assert 'User "ada" cannot get resource "customresourcedefinitions"' in definitions.text


def test_what_is_not_well_is_followed_by_what_to_do_and_where_to_read() -> None:
    found = [
        Finding(HopState.OK, "Kubernetes 1.37 answers", hop="API server"),
        Finding(HopState.FAIL, "it is missing", "helm upgrade", "webhook", "docs/doctor.md#webhook"),
    ]
    assert lines(found) == [
        "OK    API server  Kubernetes 1.37 answers",
        "FAIL  webhook     it is missing",
        "                  Try:   helm upgrade",
        "                  Read:  docs/doctor.md#webhook",
    ]


def test_the_page_of_every_check_has_its_heading() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE.read_text(), re.MULTILINE)
    anchors = {f"docs/doctor.md#{re.sub(r'[^a-z0-9 -]', '', each.lower()).replace(' ', '-')}" for each in headings}
    assert {each.page for each in CHECKS} <= anchors


# --- what is installed -----------------------------------------------------------------------------------------------


async def test_a_definition_of_another_version_is_named_with_the_fields_that_it_lacks() -> None:
    async with a_lab([a_node("n1")]) as lab:
        place = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/gangSize"
        await lab.client.patch(CRDS, "gpuclaims.gpu.scheduling", JsonPatch([{"op": "remove", "path": place}]))
        definitions = await InstalledLab(lab).one("definitions")
    assert definitions.state is HopState.WARN
    assert definitions.text == "gpuclaims.gpu.scheduling is of another version, and lacks spec.gangSize"


async def test_a_definition_that_does_not_serve_our_version_fails() -> None:
    async with a_lab([a_node("n1")]) as lab:
        theirs = await lab.client.get(CRDS, "bookings.carrel.dev")
        first = theirs["spec"]["versions"][0]
        versions = [{**first, "name": "v2"}, {**first, "served": False, "storage": False}]
        change = MergePatch({"spec": {"versions": versions}})
        await lab.client.patch(CRDS, "bookings.carrel.dev", change)
        definitions = await InstalledLab(lab).one("definitions")
    assert (definitions.state, definitions.text) == (
        HopState.FAIL,
        "bookings.carrel.dev does not serve the version v1, but v2",
    )


async def test_the_marker_names_the_namespace_of_the_one_carrel() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        none = await installed.one("installation")
        path = CLUSTER_ROLES.path(name="carrel-installation")
        marker = next(each for each in rbac() if each["metadata"]["name"] == "carrel-installation")
        installed.pods.objects[path] = marker
        here = await installed.one("installation")
        marker["metadata"]["annotations"]["carrel.dev/installed-in"] = "gpus"
        there = await installed.one("installation")
    assert (none.state, here.state, there.state) == (HopState.WARN, HopState.OK, HopState.FAIL)
    assert there.advice == "carrel doctor --carrel-namespace gpus"


@pytest.mark.parametrize(
    ("labels", "install", "change"),
    [
        pytest.param({}, "--install carrel charts/carrel", "carrel charts/carrel", id="no labels of helm"),
        pytest.param(
            {"app.kubernetes.io/instance": "gpus", "helm.sh/chart": "carrel-0.1.0"},
            "--install gpus charts/carrel",
            "gpus charts/carrel",
            id="a release of another name",
        ),
        pytest.param(
            {"app.kubernetes.io/instance": "maia", "helm.sh/chart": "gpu-booking-0.1.0"},
            "--install maia charts/gpu-booking",
            "maia charts/gpu-booking",
            id="MAIA's chart",
        ),
    ],
)
async def test_hints_name_the_release_that_the_marker_belongs_to(
    labels: dict[str, str], install: str, change: str
) -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await configure(lab.client, "nodes: {runtimeClass: gpu}")
        marker = next(each for each in rbac() if each["metadata"]["name"] == "carrel-installation")
        marker["metadata"]["labels"] = labels
        installed.pods.objects[CLUSTER_ROLES.path(name="carrel-installation")] = marker
        webhook = await installed.one("webhook")
        runtime_class = await installed.one("runtime class")
    value = "carrel.config.nodes.runtimeClass=auto" if "gpu-booking" in change else "config.nodes.runtimeClass=auto"
    keep = f"--namespace {OURS} --reset-then-reuse-values"
    assert webhook.advice == f"helm upgrade {install} {keep}"
    assert runtime_class.advice == f"helm upgrade {change} {keep} --set {value}"


async def test_a_missing_definition_fails() -> None:
    async with a_lab([a_node("n1")]) as lab:
        await lab.client.delete(CRDS, "bookings.carrel.dev")
        definitions = await InstalledLab(lab).one("definitions")
    assert (definitions.state, definitions.text) == (HopState.FAIL, "bookings.carrel.dev is missing")


async def test_priority_classes_that_are_missing_are_a_warning_and_all_of_them_are_well() -> None:
    async with a_lab([]) as lab:
        missing = await InstalledLab(lab).one("priority classes")
        for each in priority_classes():
            await lab.client.create(PRIORITY_CLASSES, each)
        there = await InstalledLab(lab).one("priority classes")
    assert missing.state is HopState.WARN
    assert there.state is HopState.OK


def a_configuration(**change: Any) -> dict[str, Any]:
    (configuration,) = webhooks(for_embedded_api=True)
    real = next(iter(webhooks()))["webhooks"]
    policies = {each["name"]: each["failurePolicy"] for each in real}
    called = {**configuration["webhooks"][0]["clientConfig"], "caBundle": "YQ=="}
    configuration["webhooks"] = [
        {**configuration["webhooks"][0], "name": name, "failurePolicy": policy, "clientConfig": called} | change
        for name, policy in policies.items()
    ]
    return configuration


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        pytest.param({}, HopState.OK, "its configuration is complete", id="complete"),
        pytest.param(
            {"clientConfig": {"service": {"namespace": OURS, "name": "carrel-webhook"}}},
            HopState.FAIL,
            "has not written its certificate authority",
            id="no authority yet",
        ),
        pytest.param({"name": "a.b.example"}, HopState.FAIL, "its configuration lacks", id="an entry is missing"),
        pytest.param(
            {"failurePolicy": "Ignore"}, HopState.FAIL, "created as they are", id="GPU pods pass without the webhook"
        ),
        pytest.param({"rules": []}, HopState.FAIL, "it has not answered yet", id="its image is missing"),
    ],
)
async def test_the_configuration_of_the_webhook(change: dict[str, Any], state: HopState, said: str) -> None:
    async with a_lab([a_node("n1")]) as lab:
        configuration = a_configuration(**change)
        if "name" in change:
            configuration["webhooks"] = configuration["webhooks"][:1]
        await lab.client.create(MUTATING_WEBHOOKS, configuration)
        webhook = await InstalledLab(lab).one("webhook")
    assert webhook.state is state
    assert said in webhook.text


# --- who leads, and who asks whom ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hop", ["gpu-scheduler", "carrel-controller"])
async def test_a_leader_that_renews_its_lease_is_well_and_one_that_is_silent_is_not(hop: str) -> None:
    async with a_lab([a_node("n1")]) as lab:
        await lead(lab, hop, seconds_ago=5)
        well = await InstalledLab(lab).one(hop)
        await lab.client.delete(LEASES, hop, OURS)
        await lead(lab, hop, seconds_ago=300)
        silent = await InstalledLab(lab).one(hop)
    assert (well.state, well.text) == (HopState.OK, "replica-1 leads")
    assert (silent.state, silent.text[:12]) == (HopState.FAIL, "nobody leads")


EXTENDER = {
    "urlPrefix": "http://127.0.0.1:39999/carrel",
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "bindVerb": "bind",
    "ignorable": False,
    "httpTimeout": "135s",
}


@pytest.mark.parametrize(
    ("extenders", "profile", "state", "said"),
    [
        pytest.param([EXTENDER], "gpu-scheduler", HopState.OK, "it has been asked 7 times", id="wired"),
        pytest.param([], "gpu-scheduler", HopState.FAIL, "no extender that binds", id="no extender"),
        pytest.param([EXTENDER], "other", HopState.FAIL, "no profile is called gpu-scheduler", id="no profile"),
        pytest.param(
            [{**EXTENDER, "urlPrefix": "http://127.0.0.1:39999/gpushare-scheduler"}],
            "gpu-scheduler",
            HopState.FAIL,
            "urlPrefix is",
            id="the address of another extender",
        ),
        pytest.param([{**EXTENDER, "ignorable": True}], "gpu-scheduler", HopState.FAIL, "is ignorable", id="ignorable"),
        pytest.param(
            [{**EXTENDER, "managedResources": [{"name": "nvidia.com/gpu"}]}],
            "gpu-scheduler",
            HopState.FAIL,
            "would never reach Carrel",
            id="only for some resources",
        ),
        pytest.param(
            [{**EXTENDER, "httpTimeout": "60s"}], "gpu-scheduler", HopState.FAIL, "gangs fail", id="too little time"
        ),
    ],
)
async def test_whether_kube_scheduler_asks_the_extender(
    extenders: list[dict[str, Any]], profile: str, state: HopState, said: str
) -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.component("scheduler")
        count = "# TYPE carrel_filter_duration_seconds histogram\ncarrel_filter_duration_seconds_count 7.0\n"
        installed.pods.answers["scheduler", "/metrics"] = 200, count
        data = {"scheduler.yaml": str({"profiles": [{"schedulerName": profile}], "extenders": extenders})}
        metadata = {"name": "carrel-scheduler"}
        await lab.client.create(
            CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}, OURS
        )
        found = await installed.one("extender")
    assert found.state is state
    assert said in found.text


async def test_a_kube_scheduler_that_was_configured_by_hand_is_a_warning() -> None:
    async with a_lab([]) as lab:
        found = await InstalledLab(lab).one("extender")
    assert (found.state, found.advice) == (HopState.WARN, "carrel doctor --probe")


# --- nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "words"),
    [(timedelta(minutes=-5), "last heartbeat was at"), (timedelta(days=365), "in the future: the clock of its node")],
    ids=["five minutes ago", "next year"],
)
async def test_a_silent_agent_fails_and_an_unhealthy_gpu_is_a_warning_with_its_reason(
    off: timedelta, words: str
) -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab:
        old = {"status": {"heartbeat": seconds(lab.clock.now + off)}}
        await lab.client.patch(GPU_NODE_STATUSES, "n1", MergePatch(old), subresource="status")
        devices = (await lab.client.get(GPU_NODE_STATUSES, "n2"))["status"]["devices"]
        devices[0] |= {"health": "Unhealthy", "reason": "XID 79"}
        broken = {"status": {"devices": devices}}
        await lab.client.patch(GPU_NODE_STATUSES, "n2", MergePatch(broken), subresource="status")
        look = await InstalledLab(lab).look("agents")
        found = {each.hop: each for each in reversed(look)}
    assert found["node n1"].state is HopState.FAIL
    assert "it gets no new GPU pods" in found["node n1"].text and words in found["node n1"].text
    assert found["node n2"].state is HopState.WARN
    assert "GPU 0: XID 79" in found["node n2"].text


async def test_an_agent_that_cannot_see_containers_is_a_warning() -> None:
    async with a_lab([a_node("n1")]) as lab:
        blind = await InstalledLab(lab).one("agents")
        sees_containers = MergePatch({"status": {"orphans": []}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", sees_containers, subresource="status")
        well = await InstalledLab(lab).one("agents")
    assert (blind.state, well.state) == (HopState.WARN, HopState.OK)
    assert "a GPU counts as free while a deleted pod may still use it" in blind.text


@pytest.mark.parametrize(
    ("limits", "can", "state", "said"),
    [
        pytest.param("required", [True, True], HopState.OK, "limits the memory of every part", id="required"),
        pytest.param("off", [True, False], HopState.OK, "counted, and not limited", id="off"),
        pytest.param("auto", [False, False], HopState.OK, "no node can (n1: its driver is old; n2", id="none can"),
        pytest.param("auto", [True, False], HopState.WARN, "until these nodes can limit them too: n2", id="one cannot"),
        pytest.param("auto", [True, True], HopState.OK, "all nodes can limit memory", id="it is about to begin"),
    ],
)
async def test_whether_parts_are_limited(limits: str, can: list[bool], state: HopState, said: str) -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab:
        await configure(lab.client, f"memory: {{limits: '{limits}'}}", APPLIED)
        for node, is_able in zip(("n1", "n2"), can, strict=True):
            await says(lab, "possible" if is_able else "its driver is old", node)
        finding = (await seen(lab))["memory limits"]

    assert (finding.state, said in finding.text) == (state, True), finding.text


async def test_a_node_that_takes_no_parts_is_named() -> None:
    async with a_lab([a_node("n1"), a_node("n2")]) as lab:
        await configure(lab.client, "memory: {limits: required}", APPLIED)
        await says(lab, "possible", "n1")
        finding = (await seen(lab))["node n2"]

    assert finding.state is HopState.WARN


async def test_no_agent_at_all_is_a_warning() -> None:
    async with a_lab([]) as lab:
        found = await InstalledLab(lab).one("agents")
    assert (found.state, found.text) == (HopState.WARN, "no agent has reported: no GPU is known")
