"""`carrel doctor`: accounts, components, clocks, settings, bookings, hub, MAIA, kubelets and invariants."""

from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from carrel import manifests
from carrel.cli.checks.accounts import rights_by_account
from carrel.cli.checks.bookings import newest_migration
from carrel.cli.checks.finding import HopState
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import (
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from carrel.kubernetes.server_clock import ServerClock
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.auth import AccessRequest
from tests.kit.configuration import configure
from tests.kit.configuring import change, configuring_on
from tests.kit.gpus import a_node
from tests.kit.installation import InstalledLab
from tests.kit.lab import OURS, Lab, a_lab

OK, WARN, FAIL = HopState.OK, HopState.WARN, HopState.FAIL


# --- accounts --------------------------------------------------------------------------------------------------------


async def test_every_right_of_the_manifests_is_asked_for_and_one_that_is_missing_is_named() -> None:
    asked: set[tuple[str, str, str, str]] = set()

    def may(ask: AccessRequest) -> bool:
        resource = f"{ask.resource}/{ask.subresource}" if ask.subresource else ask.resource
        asked.add((ask.user.name, ask.verb, ask.group, resource))
        return not (ask.user.name.endswith(":carrel-extender") and resource == "pods/binding")

    async with a_lab([]) as lab:
        lab.api = EmbeddedApi(Settings(clock=lab.clock, may=may))
        found = {each.hop: each for each in await InstalledLab(lab).look("accounts")}
    assert found["account carrel-agent"].state is OK
    assert found["account carrel-extender"].state is FAIL
    assert found["account carrel-extender"].text.startswith("it may not create pods/binding; create pods/binding")
    wanted = rights_by_account(manifests.rbac(), OURS)
    assert {(name, each.verb, each.group, each.resource) for name, all_ in wanted.items() for each in all_} == asked
    assert len(wanted) == 6


def test_rights_are_those_of_the_namespace_of_the_release() -> None:
    rights = rights_by_account(manifests.rbac(), "gpus")
    agent = {str(each) for each in rights["system:serviceaccount:gpus:carrel-agent"]}
    assert "list leases.coordination.k8s.io in gpus" in agent
    assert "watch configmaps in kube-system" in agent
    assert "patch nodes/status" in agent


# --- components ------------------------------------------------------------------------------------------------------


async def test_components_that_run_and_answer_are_well() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.all_components()
        found = await installed.look("components")
    assert {each.hop: each.text for each in found} == {
        f"component {name}": "1 ready, and answers"
        for name in ("webhook", "scheduler", "controller", "agent", "booking")
    }


async def test_a_component_that_is_missing_not_ready_or_out_of_reach_is_named() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.component("webhook", ready=False)
        await installed.component("controller")
        await installed.component("agent")
        installed.pods.answers["controller", "/readyz"] = 503, "the watches have not begun"
        installed.pods.unreachable.add("agent")
        found = {each.hop: each for each in await installed.look("components")}
    assert found["component scheduler"].text == "no pod of it runs"
    assert "CrashLoopBackOff: it ended" in found["component webhook"].text
    assert found["component controller"].text == "carrel-controller is not ready: the watches have not begun"
    assert found["component agent"].state is WARN
    assert "dial tcp: i/o timeout" in found["component agent"].text
    assert {found[f"component {name}"].state for name in ("scheduler", "webhook", "controller")} == {FAIL}


async def test_who_may_not_ask_pods_believes_the_kubelet() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.all_components()
        installed.pods.forbidden = True
        found = await installed.look("components")
        clocks = await installed.one("clocks")
    assert {each.text for each in found} == {"1 ready, as the kubelet says"}
    assert clocks.state is WARN


async def test_components_of_two_versions_are_a_warning() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.all_components()
        await installed.component("webhook", name="carrel-webhook-old", image="carrel:0", version="0.0.1")
        found = [each.text for each in await installed.look("components") if each.state is WARN]
    assert found[0] == "they run different images: carrel:0, carrel:test"
    assert found[1].startswith("Carrel 0.0.1 is installed")


@pytest.mark.parametrize(
    ("ahead_s", "state", "said"),
    [
        pytest.param(0, OK, "agree", id="right"),
        pytest.param(2, OK, "agree", id="two seconds are nothing"),
        pytest.param(30, WARN, "is 30 s ahead", id="half a minute ahead"),
        pytest.param(-31, WARN, "is 30 s behind", id="half a minute behind"),
        pytest.param(3600, FAIL, "is 3,600 s ahead", id="an hour"),
    ],
)
async def test_the_clock_of_each_component_is_compared_with_the_api_servers(
    ahead_s: int, state: HopState, said: str
) -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.all_components()
        at = lab.clock.now + timedelta(seconds=ahead_s)
        installed.pods.dates["agent"] = format_datetime(at, usegmt=True)
        found = (await installed.look("clocks"))[1:]  # the first is about this machine
    assert [each.state for each in found] == [state]
    assert said in found[0].text
    assert state is OK or "carrel-agent on n1" in found[0].text


async def test_a_wrong_clock_of_this_machine_is_a_finding() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        installed.client.clock = ServerClock(lab.clock)
        right = (await installed.look("clocks"))[0]
        late = format_datetime(lab.clock.now - timedelta(minutes=5), usegmt=True)
        installed.client.clock.observe(late, sent=lab.clock.now)
        wrong = (await installed.look("clocks"))[0]
    assert (right.state, wrong.state) == (OK, FAIL)
    assert "the clock of this machine is 299 s ahead" in wrong.text


# --- the configuration -----------------------------------------------------------------------------------------------


async def test_the_configuration_in_force_has_an_age_and_a_source() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        installed, configuring = InstalledLab(lab), configuring_on(replica)
        none = await installed.one("configuration")
        await configure(lab.client, "{}")
        unrecorded = await installed.one("configuration")
        await configuring.round()
        await change(lab, "tiers: {victims: random}", "ada", "as MAIA did")
        undecided = await installed.one("configuration")
        await configuring.round()
        lab.clock.now += timedelta(days=3, hours=4)
        well = await installed.one("configuration")
    assert [each.state for each in (none, unrecorded, undecided, well)] == [FAIL, WARN, WARN, OK]
    assert "has no ConfigMap carrel: no component can start" in none.text
    assert "no controller has recorded it" in unrecorded.text
    assert "no controller has decided about it" in undecided.text
    assert well.text == ("in force for 3 d 4 h, since Mon 16 Nov 2026 12:00 UTC; last changed by ada (as MAIA did)")


async def test_a_configuration_that_is_refused_fails_with_all_mistakes() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        await configure(lab.client, "{}")
        await configuring_on(replica).round()
        await configure(lab.client, "tiers: {victim: fair, atEnd: never}")
        await configuring_on(replica).round()
        found = await InstalledLab(lab).one("configuration")
    assert (found.state, found.advice) == (FAIL, "carrel config show")
    assert "did you mean victims?; tiers.atEnd is 'never'" in found.text


@pytest.mark.parametrize(
    ("check", "component", "env", "state", "said"),
    [
        pytest.param("configuration", "agent", {"CARREL_LOG_LEVEL": "debug"}, OK, "", id="an option of the process"),
        pytest.param(
            "configuration",
            "agent",
            {"CARREL_MEMORY_UNIT": "GiB"},
            FAIL,
            "CARREL_MEMORY_UNIT is memory.unit in the configuration",
            id="a setting that moved",
        ),
        pytest.param("settings", "agent", {"CARREL_MEMORY_UNIT": "GiB"}, OK, "", id="which is no typing error"),
        pytest.param("settings", "agent", {"CARREL_REPORT_ONLY": "true"}, OK, "", id="an agent that only reports"),
        pytest.param(
            "settings", "booking", {"CARREL_DATABSE": "x"}, WARN, "no setting CARREL_DATABSE", id="a typing error"
        ),
    ],
)
async def test_settings_whose_wrong_value_nobody_notices(
    check: str, component: str, env: dict[str, str], state: HopState, said: str
) -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        await configure(lab.client, "{}")
        await configuring_on(replica).round()
        installed = InstalledLab(lab)
        for each in ("webhook", "scheduler", "controller", "booking", "agent"):
            await installed.component(each, env if each == component else {})
        found = await installed.one(check)
    assert found.state is state
    assert said in found.text


# --- RuntimeClass ----------------------------------------------------------------------------------------------------


async def a_runtime_class(lab: Lab, name: str) -> None:
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
    await lab.client.create(RUNTIME_CLASSES, body)


@pytest.mark.parametrize(
    ("text", "agent", "there", "state", "said"),
    [
        pytest.param("{}", {}, "nvidia", OK, "get nvidia", id="found by itself"),
        pytest.param(
            "nodes: {runtimeClass: gpu}", {}, "nvidia", FAIL, "no RuntimeClass gpu", id="a name that is not there"
        ),
        pytest.param("{}", {"CARREL_SIMULATE": "f"}, "", OK, "simulated", id="simulated GPUs need none"),
        pytest.param("{}", {}, "", WARN, "hideGpusFrom is nvidia-pods", id="the default runtime shows GPUs to images"),
        pytest.param("nodes: {hideGpusFrom: all-pods}", {}, "", OK, "--probe", id="all pods are told to see none"),
    ],
)
async def test_the_runtime_class(text: str, agent: dict[str, str], there: str, state: HopState, said: str) -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await configure(lab.client, text)
        await installed.component("agent", agent)
        if there:
            await a_runtime_class(lab, there)
        found = await installed.one("runtime class")
    assert found.state is state
    assert said in found.text


# --- kubelets --------------------------------------------------------------------------------------------------------


async def show(lab: Lab, **resources: str) -> None:
    """What the kubelet of n1 advertises."""
    names = {"gpu": "nvidia.com/gpu", "memory": "aliyun.com/gpu-mem"}
    given = {names[each]: amount for each, amount in resources.items()}
    status = {"status": {"capacity": given, "allocatable": given}}
    await lab.client.patch(NODES, "n1", MergePatch(status), subresource="status")


@pytest.mark.parametrize(
    ("shown", "env", "state", "said"),
    [
        pytest.param({"gpu": "2", "memory": "32552"}, {}, OK, "advertises 2 nvidia.com/gpu", id="all is advertised"),
        pytest.param(
            {"gpu": "0", "memory": "32552"}, {}, FAIL, "advertises 0 nvidia.com/gpu", id="no plugin registered"
        ),
        pytest.param({"gpu": "1", "memory": "32552"}, {}, WARN, "and 2 GPUs are healthy", id="a GPU less"),
        pytest.param({"gpu": "2", "memory": "0"}, {}, FAIL, "no aliyun.com/gpu-mem", id="no memory"),
        pytest.param(
            {"gpu": "0", "memory": "0"},
            {"plugin": "coexist"},
            FAIL,
            "NVIDIA's plugin must run",
            id="coexist alone",
        ),
        pytest.param({"gpu": "2", "memory": "0"}, {"plugin": "coexist"}, OK, "", id="beside NVIDIA's plugin"),
        pytest.param(
            {"gpu": "0", "memory": "0"}, {"CARREL_REPORT_ONLY": "true"}, OK, "", id="other plugins advertise all"
        ),
    ],
)
async def test_what_each_kubelet_advertises(
    shown: dict[str, str], env: dict[str, str], state: HopState, said: str
) -> None:
    async with a_lab([a_node("n1", 2)]) as lab:
        installed = InstalledLab(lab)
        await configure(lab.client, f"nodes: {{plugin: {env.get('plugin', 'native')}}}")
        await installed.component("agent", env)
        await lab.client.patch(
            GPU_NODE_STATUSES, "n1", MergePatch({"status": {"memoryResource": "node"}}), subresource="status"
        )
        await show(lab, **shown)
        found = await installed.one("kubelets")
    assert found.state is state
    assert said in found.text


async def test_a_report_of_a_node_that_does_not_exist_fails() -> None:
    async with a_lab([a_node("n1")]) as lab:
        await lab.client.delete(NODES, "n1")
        found = await InstalledLab(lab).one("kubelets")
    assert (found.state, "--node-name" in found.text) == (FAIL, True)


# --- bookings --------------------------------------------------------------------------------------------------------


def measured(**values: object) -> str:
    """The metrics of a booking service."""
    level = values.pop("level", newest_migration())
    known = {"carrel_booking_mirror_age_seconds": 5, "carrel_booking_mirror_differences": 0} | values
    lines = [f"# TYPE {name} gauge\n{name} {value}" for name, value in known.items()]
    return "\n".join(
        [*lines, f'# TYPE carrel_database_migration gauge\ncarrel_database_migration{{revision="{level}"}} 1\n']
    )


@pytest.mark.parametrize(
    ("check", "metrics", "state", "said"),
    [
        pytest.param("database", {}, OK, "the newest", id="tables of this version"),
        pytest.param("database", {"level": "0000"}, WARN, "at level 0000", id="older tables"),
        pytest.param("database", {"level": "9999"}, OK, "of a newer version", id="newer tables"),
        pytest.param("mirrored bookings", {}, OK, "which agree", id="mirrored"),
        pytest.param(
            "mirrored bookings", {"carrel_booking_mirror_age_seconds": 300}, FAIL, "300 s ago", id="not compared"
        ),
        pytest.param(
            "mirrored bookings", {"carrel_booking_mirror_differences": 2}, WARN, "2 objects differed", id="different"
        ),
    ],
)
async def test_the_booking_service_says_how_its_tables_and_objects_are(
    check: str, metrics: dict[str, object], state: HopState, said: str
) -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.all_components()
        installed.pods.answers["booking", "/metrics"] = 200, measured(**metrics)
        found = await installed.one(check)
    assert found.state is state
    assert said in found.text


async def test_a_booking_service_whose_database_is_away_fails() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.all_components()
        well = await installed.one("booking service")
        installed.pods.answers["booking", "/readyz"] = 503, "the database does not answer"
        away = await installed.one("booking service")
        installed.pods.unreachable.add("booking")
        lost = await installed.one("booking service")
    assert (well.state, away.state, lost.state) == (OK, FAIL, FAIL)
    assert "the database does not answer" in away.text


async def test_bookings_that_are_made_here_and_elsewhere_fail() -> None:
    url = {"CARREL_API_URL": "https://maia.example"}
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.component("controller", url)
        await installed.component("webhook", url)
        elsewhere = await installed.one("booking service")
        installed.pods.answers["webhook", "/metrics"] = (
            200,
            "# TYPE carrel_booking_service_failures counter\ncarrel_booking_service_failures_total 3.0\n",
        )
        silent = await installed.one("booking service")
        await installed.component("booking")
        twice = await installed.one("booking service")
    assert (elsewhere.state, silent.state, twice.state) == (OK, WARN, FAIL)
    assert "https://maia.example" in elsewhere.text
    assert "a GPU may be booked in both" in twice.text


async def test_a_service_that_only_shows_is_well_beside_bookings_elsewhere_and_keeps_no_objects() -> None:
    async with a_lab([]) as lab:  # has the object of a booking
        installed = InstalledLab(lab)
        for component in ("controller", "webhook"):
            await installed.component(component, {"CARREL_API_URL": "https://maia.example/api"})
        await installed.component("booking", {"CARREL_BOOKINGS_ELSEWHERE": "https://maia.example"})
        service, left = await installed.one("booking service"), await installed.one("mirrored bookings")
        installed.pods.answers["booking", "/readyz"] = 503, "the database does not answer"
        away = await installed.one("booking service")
    assert (service.state, left.state, away.state) == (OK, WARN, FAIL)
    assert "bookings are made at https://maia.example/api" in service.text


async def test_objects_of_a_booking_service_that_is_gone_are_a_warning_and_one_that_cannot_be_read_fails() -> None:
    async with a_lab([]) as lab:  # has the object of a booking
        installed = InstalledLab(lab)
        left = await installed.one("mirrored bookings")
        await lab.client.patch(BOOKINGS, "enough", MergePatch({"spec": {"start": "soon"}}))
        unreadable = await installed.one("mirrored bookings")
    assert (left.state, unreadable.state) == (WARN, FAIL)
    assert "spec.start" in unreadable.text


# --- invariants ------------------------------------------------------------------------------------------------------


async def test_invariants_are_counted_again_from_the_cluster() -> None:
    async with a_lab([a_node("n1")]) as lab:
        installed = InstalledLab(lab)
        async with lab.replica() as replica:
            assert await replica.bind(await lab.pod("train", limits={"nvidia.com/gpu": "1"}), "n1") is None
        well = await installed.one("invariants")
        (lease,) = [each for each in (await lab.client.list(LEASES)).items if each.metadata.name.startswith("gpu-")]
        shares = lease.metadata.annotations["carrel.dev/shares"]
        uid = shares.split('"')[1]
        doubled = shares[:-1] + "," + shares[1:].replace(uid, "another")
        change = MergePatch({"metadata": {"annotations": {"carrel.dev/shares": doubled}}})
        await lab.client.patch(LEASES, lease.metadata.name, change, OURS)
        broken = await installed.look("invariants")
    assert (well.state, well.text[:4]) == (OK, "all ")
    assert [each.state for each in broken] == [FAIL, WARN]
    assert "is held whole by" in broken[0].text
    assert "which does not exist" in broken[1].text


# --- hub and MAIA ----------------------------------------------------------------------------------------------------


def may_all_but(*refused: str) -> Any:
    def may(ask: AccessRequest) -> bool:
        is_hub = ask.user.name == "system:serviceaccount:jhub:hub"
        return not (is_hub and f"{ask.verb} {ask.resource}" in refused)

    return may


@pytest.mark.parametrize(
    ("refused", "account", "state", "said"),
    [
        pytest.param((), "hub", OK, "what Carrel's spawner needs", id="all rights"),
        pytest.param(
            ("patch pods",), "hub", WARN, "may come back on CPU", id="it cannot say that no successor is wanted"
        ),
        pytest.param(("create pods",), "hub", FAIL, "cannot start notebooks", id="no pods"),
        pytest.param((), "other", FAIL, "has no ServiceAccount hub", id="no such account"),
    ],
)
async def test_the_account_of_the_hub(refused: tuple[str, ...], account: str, state: HopState, said: str) -> None:
    async with a_lab([]) as lab:
        api = EmbeddedApi(Settings(clock=lab.clock, may=may_all_but(*refused)))
        there = InstalledLab(Lab(api, lab.clock))
        for name in (OURS, "jhub"):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await there.lab.client.create(NAMESPACES, namespace)
        await configure(there.lab.client, "hubs: {accounts: [system:serviceaccount:jhub:hub]}")
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}
        await there.lab.client.create(SERVICE_ACCOUNTS, body, "jhub")
        found = await there.one("hub")
    assert found.state is state
    assert said in found.text


async def test_pods_of_a_hub_that_nobody_named_are_a_warning() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await installed.component("webhook")
        none = await installed.one("hub")
        name = "carrel_pods_of_unlisted_spawners"
        installed.pods.answers["webhook", "/metrics"] = 200, f"# TYPE {name} counter\n{name}_total 4.0\n"
        some = await installed.one("hub")
    assert (none.state, some.state) == (OK, WARN)
    assert some.text.startswith("4 pods came from a hub that is not in hubs.accounts")


async def test_a_hub_that_runs_and_is_not_named_is_a_warning_with_its_account() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        await lab.client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "jhub"}})
        labels = {"app": "jupyterhub", "component": "hub"}
        spec = {"serviceAccountName": "hub", "containers": [{"name": "hub", "image": "hub"}]}
        for name, theirs in {"hub-7d": labels, "other": {"component": "hub"}}.items():
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": theirs}, "spec": spec}
            await lab.client.create(PODS, body, "jhub")
        found = await installed.one("hub")
        await configure(lab.client, "hubs: {accounts: [any]}")
        everybody = await installed.one("hub")
    assert (found.state, everybody.state) == (WARN, WARN)
    assert found.text.startswith(
        "a hub runs as jhub/hub-7d, and system:serviceaccount:jhub:hub is not in hubs.accounts"
    )
    assert "config.hubs.accounts={system:serviceaccount:jhub:hub}" in found.advice
    assert everybody.text.startswith("hubs.accounts has any: whoever creates a pod says whose it is")


@pytest.mark.parametrize(
    ("selector", "policy", "state", "said"),
    [
        pytest.param({"app.kubernetes.io/name": "carrel"}, "Fail", OK, "Carrel answers", id="in its place"),
        pytest.param(
            {"app.kubernetes.io/name": "carrel"}, "Ignore", WARN, "created without Carrel", id="step 5 left out"
        ),
        pytest.param({"app": "gpu-booking"}, "Ignore", FAIL, "two webhooks decide", id="MAIA's own still runs"),
        pytest.param(None, "Ignore", FAIL, "does not exist", id="the Service is gone"),
    ],
)
async def test_in_maias_place(selector: dict[str, str] | None, policy: str, state: HopState, said: str) -> None:
    async with a_lab([]) as lab:
        (configuration,) = manifests.webhooks(for_embedded_api=True)
        webhook = configuration["webhooks"][0] | {"failurePolicy": policy}
        webhook["clientConfig"] = {"service": {"namespace": "lab", "name": "gpu-booking-mutating-webhook"}}
        configuration |= {"metadata": {"name": "gpu-booking-webhook"}, "webhooks": [webhook]}
        await lab.client.create(MUTATING_WEBHOOKS, configuration)
        if selector:
            spec = {"selector": selector, "ports": [{"port": 443}]}
            body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "gpu-booking-mutating-webhook"}}
            await lab.client.create(SERVICES, {**body, "spec": spec}, "lab")
        found = await InstalledLab(lab).one("MAIA")
    assert found.state is state
    assert said in found.text


async def test_a_pod_terminator_for_everybody_is_a_warning() -> None:
    async with a_lab([]) as lab:
        installed = InstalledLab(lab)
        none = await installed.one("MAIA")
        await installed.component("controller", {"CARREL_TERMINATOR_FOR_ALL": "true"})
        found = await installed.one("MAIA")
    assert (none.state, found.state) == (OK, WARN)
