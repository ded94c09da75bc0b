"""One `helm install`, with the real helm, image and node; an upgrade to the next release, on which people book and
work, and in which each component is away once; the way back; and what is left after the uninstall.

The tests follow each other: each finds what the one before it has left.
"""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.async_api import Page

from carrel import __version__
from carrel.bookings.sign_in.hub import CALLBACK
from carrel.dialects.booking_objects import BOOKINGS
from carrel.http.serving import Address, serving
from testbed.processes import Failed
from tests.browser.service import a_browser
from tests.e2e import chart_examples
from tests.e2e.chart import APPS, CHART, COMPONENT, NAMESPACE, STARTING_S, InstalledChart, chart_node
from tests.e2e.configuration import ADMIN
from tests.e2e.gpu_booking import carrel
from tests.e2e.next_release_chart import FIELD, next_chart, next_image
from tests.e2e.pods import Json, eventually, is_gone, namespace, pod
from tests.e2e.scraping import prometheus_of
from tests.e2e.webhook import UserClient
from tests.kit import hub_provider
from tests.kit.next_release import VERSION, next_level
from tests.kit.ports import free_port
from tools.image.carrel_image import carrel_image

ADA, BOB, EVE = "ada@lab.example", "bob@lab.example", "eve@lab.example"
HOST = "gpus.lab.example"
PUBLIC_URL = f"http://{HOST}:39997"
HUB_PORT = free_port()
"""Of the hub with which people sign in to the pages."""
CLAIMS = "/apis/gpu.scheduling/v1/namespaces/default/gpuclaims"
A100, A6000 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-RTX-A6000"
GPUS = [
    {"count": 24, "model": A100, "memoryMiB": 16276, "perIsland": 4, "bandwidthGBps": 600},
    {"count": 2, "model": A6000, "memoryMiB": 16276},
]
"""All examples have room at the same time."""
SIMULATED = ["--values", str(CHART / "examples/simulate.yaml"), "--set-json", f"agent.simulate={json.dumps(GPUS)}"]
DRA = "/apis/resource.k8s.io/v1"
CLAIM = f"{DRA}/namespaces/default/resourceclaims/left"
GATE = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/carrel"
TWO_EACH = ["--set", "webhook.replicas=2,scheduler.replicas=2,controller.replicas=2"]
CLAIMED = "config.resourceClaims.enabled"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/carrel-secrets"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/carrel"
BLIND = "its agent cannot see containers"
"""What the doctor says on this test bed, whose control groups are below one of its own."""
TELL = "env | grep NVIDIA_VISIBLE_DEVICES; echo told; sleep 3600"


@pytest.fixture(scope="module")
def chart() -> Iterator[InstalledChart]:
    with chart_node() as found:
        # The first is for the example of the values; the second NVIDIA's feature discovery writes.
        labels = {"carrel.dev/simulated-gpus": "true", "nvidia.com/gpu.product": A6000}
        found.api.call("PATCH", f"/api/v1/nodes/{found.node.name}", {"metadata": {"labels": labels}})
        found.helm("install", "carrel", CHART, "--create-namespace", *SIMULATED, *TWO_EACH, "--set", f"{CLAIMED}=true")
        yield found


def wait_same(look: Callable[[], object], wanted: object) -> None:
    """A failure shows what was seen last."""
    with contextlib.suppress(AssertionError):
        eventually(lambda: look() == wanted, STARTING_S)
    assert look() == wanted


def create_as(chart: InstalledChart, who: str, manifest: Json) -> None:
    def is_created() -> bool:
        status, answer = UserClient(chart.api, who).call("POST", "/api/v1/namespaces/default/pods", manifest)
        # kube-proxy learns a moment later than the webhook's pods that they are ready.
        assert status in (201, 500), answer
        return status == 201

    eventually(is_created, STARTING_S)


def wait_for(chart: InstalledChart, name: str, phase: str = "Running") -> Json:
    def seen() -> Json | None:
        pods = chart.get("/api/v1/namespaces/default/pods")["items"]
        return next((p for p in pods if p["metadata"]["name"] == name and p["status"]["phase"] == phase), None)

    found = eventually(seen, STARTING_S)
    assert found is not None
    return found


def run(chart: InstalledChart, manifest: Json, until: str = "Running", who: str = ADMIN) -> Json:
    """The pod, as soon as it runs."""
    create_as(chart, who, manifest)
    return wait_for(chart, manifest["metadata"]["name"], until)


def told(chart: InstalledChart, name: str) -> str:
    def lines() -> list[str]:
        try:
            said = chart.api.kubectl("logs", name).splitlines()
        except Failed:
            return []
        return said if said[-1:] == ["told"] else []

    return eventually(lines, STARTING_S)[0].removeprefix("NVIDIA_VISIBLE_DEVICES=")


def leases_of(chart: InstalledChart, uid: str) -> list[Json]:
    leases = chart.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")["items"]
    return [each for each in leases if uid in each["metadata"].get("annotations", {}).get("carrel.dev/shares", "")]


def lease_of(chart: InstalledChart, uid: str) -> Json:
    (found,) = leases_of(chart, uid)
    return found


def assert_kept(chart: InstalledChart, before: Json) -> None:
    """The pod runs as it did, with the same GPU."""
    now = chart.pod(before["metadata"]["name"])
    assert (now["metadata"]["uid"], now["status"]["phase"]) == (before["metadata"]["uid"], "Running")
    assert [each["restartCount"] for each in now["status"]["containerStatuses"]] == [0]
    lease = lease_of(chart, now["metadata"]["uid"])
    assert lease["metadata"]["annotations"]["carrel.dev/gpu"] == told(chart, before["metadata"]["name"])


def tier(found: Json) -> str:
    return str(found["metadata"]["annotations"]["carrel.dev/tier"])


def images(chart: InstalledChart) -> set[str]:
    return {each["spec"]["containers"][0]["image"] for each in chart.pods()}


def with_notes(manifest: Json, notes: dict[str, str]) -> Json:
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": notes}}


LEVEL = """import sqlite3
for (level,) in sqlite3.connect("/var/lib/carrel/carrel.db").execute("SELECT version_num FROM alembic_version"):
    print(level)"""


def database_level(chart: InstalledChart) -> str:
    inside = ("exec", "deployment/carrel-booking", "--namespace", NAMESPACE, "--", "python3", "-c", LEVEL)
    return chart.api.kubectl(*inside).strip()


def test_all_pods_become_ready(chart: InstalledChart) -> None:
    assert chart.wait_ready() == {"webhook": 2, "scheduler": 2, "controller": 2, "agent": 1, "booking": 1}


def slices(chart: InstalledChart) -> list[Json]:
    found: list[Json] = chart.get(f"{DRA}/resourceslices")["items"]
    return found


def test_the_claim_of_the_documentation_runs_and_sees_its_gpu(chart: InstalledChart) -> None:
    eventually(lambda: slices(chart), STARTING_S)
    template, wanted = chart_examples.in_docs("dra.md")
    chart.api.call("POST", f"{DRA}/namespaces/default/resourceclaimtemplates", template)
    manifest = pod("train", TELL, resourceClaims=wanted["spec"]["resourceClaims"])
    manifest["spec"]["containers"][0]["resources"] = wanted["spec"]["containers"][0]["resources"]
    running = run(chart, manifest)
    (claim,) = running["status"]["resourceClaimStatuses"]
    made = chart.get(f"{DRA}/namespaces/default/resourceclaims/{claim['resourceClaimName']}")
    (given,) = leases_of(chart, made["metadata"]["uid"])
    assert told(chart, "train") == given["metadata"]["annotations"]["carrel.dev/gpu"]


def test_claims_are_not_switched_off_while_a_pod_uses_one(chart: InstalledChart) -> None:
    (made,) = chart.get(f"{DRA}/namespaces/default/resourceclaims")["items"]
    with pytest.raises(Failed, match=f"by the ResourceClaims default/{made['metadata']['name']}: they could not end"):
        upgrade(chart, f"{CLAIMED}=false")
    chart.api.call("DELETE", "/api/v1/namespaces/default/pods/train")
    eventually(lambda: not leases_of(chart, made["metadata"]["uid"]), STARTING_S)


def test_a_pod_gets_one_of_the_simulated_gpus_and_sees_that_one(chart: InstalledChart) -> None:
    devices = chart.get(f"/apis/gpu.scheduling/v1/gpunodestatuses/{chart.node.name}")["status"]["devices"]
    running = run(chart, pod("works", TELL, {"nvidia.com/gpu": "1"}))
    lease = lease_of(chart, running["metadata"]["uid"])
    assert told(chart, "works") == lease["metadata"]["annotations"]["carrel.dev/gpu"]
    assert told(chart, "works") in {each["uuid"] for each in devices}
    assert [each["model"] for each in devices] == [A100] * 24 + [A6000] * 2


def upgrade(chart: InstalledChart, *values: str) -> None:
    chart.helm("upgrade", "carrel", CHART, "--reset-then-reuse-values", "--set", ",".join(values))


def processes(chart: InstalledChart) -> set[tuple[str, str, int]]:
    """Every container with its pod, and how often it was started again."""
    return {
        (pod["metadata"]["uid"], each["name"], each["restartCount"])
        for pod in chart.pods()
        for each in pod["status"]["containerStatuses"]
    }


def generations(chart: InstalledChart) -> dict[str, int]:
    """How often what the chart runs was changed."""
    kinds = (chart.get(f"{APPS}/{kind}")["items"] for kind in ("deployments", "daemonsets"))
    return {each["metadata"]["name"]: each["metadata"]["generation"] for items in kinds for each in items}


def has_followed(chart: InstalledChart, component: str, change: str) -> bool:
    """Whether every replica of the component acts on the change."""
    replicas = [each for each in chart.pods() if each["metadata"]["labels"][COMPONENT] == component]
    lines = [each for each in said(chart, component) if f"configuration_changed {change}" in each]
    return len(lines) == len(replicas)


def said(chart: InstalledChart, component: str) -> list[str]:
    """The logs of all its pods."""
    label = f"{COMPONENT}={component}"
    return chart.api.kubectl("logs", "--namespace", NAMESPACE, "--selector", label, "--tail=-1").splitlines()


def applied(chart: InstalledChart) -> Json:
    found: Json = chart.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/carrel-applied")["data"]
    return found


def test_a_change_of_the_configuration_is_in_force_in_seconds_and_restarts_nothing(chart: InstalledChart) -> None:
    before, changed = processes(chart), generations(chart)
    upgrade(chart, "config.tiers.revocationGrace=7s", "config.bookings.rules.maxGpus=3")
    wanted = {"controller": "tiers.revocationGrace: 0s → 7s", "booking": "bookings.rules.maxGpus: 4 → 3"}
    for component, change in wanted.items():
        eventually(partial(has_followed, chart, component, change))
    assert "revocationGrace: 7s" in applied(chart)["carrel.yaml"]

    # What helm cannot know to be wrong changes nothing at all, and is told.
    upgrade(chart, "config.lab.timezone=Nowhere/City", "config.tiers.revocationGrace=9s")
    eventually(lambda: "Nowhere/City" in applied(chart)["refused.json"], 30)
    assert "revocationGrace: 7s" in applied(chart)["carrel.yaml"]
    events = eventually(lambda: [each["message"] for each in refusals(chart)])
    assert events == ["lab.timezone is 'Nowhere/City'; expected an IANA zone such as Europe/Stockholm"]

    upgrade(chart, "config.lab.timezone=UTC", "config.tiers.revocationGrace=0s", "config.bookings.rules.maxGpus=4")
    eventually(lambda: not applied(chart)["refused.json"], 30)
    assert "revocationGrace: 0s" in applied(chart)["carrel.yaml"]
    assert (processes(chart), generations(chart)) == (before, changed)
    assert not [each for name in (*wanted, "webhook") for each in said(chart, name) if "starting_again" in each]


def refusals(chart: InstalledChart) -> list[Json]:
    events = chart.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return [
        each
        for each in events
        if (each["reason"], each["involvedObject"]["name"]) == ("ConfigurationRefused", "carrel")
    ]


def test_a_real_prometheus_scrapes_all_components(chart: InstalledChart) -> None:
    main_metrics = {
        "webhook": ["carrel_reviews_total", "carrel_review_duration_seconds_bucket"],
        "scheduler": ["carrel_filter_duration_seconds_bucket", "carrel_bind_duration_seconds_bucket"],
        "controller": [
            "carrel_leader",
            "carrel_gpus",
            "carrel_waiting_pods",
            "carrel_invariant_check_duration_seconds",
        ],
        "agent": ["carrel_node_gpus", "carrel_node_reported_timestamp_seconds"],
        "booking": ["carrel_bookable_gpus", "carrel_booking_mirror_age_seconds"],
    }
    with prometheus_of(chart) as prometheus:

        def missing() -> list[str]:
            every = {component: [*names, "carrel_api_requests_total"] for component, names in main_metrics.items()}
            asked = [f'{name}{{component="{component}"}}' for component, names in every.items() for name in names]
            return [each for each in asked if prometheus.value(f"count({each})") is None]

        up = {each: ["up"] * count for each, count in chart.wait_ready().items()}
        wait_same(prometheus.targets, up)
        wait_same(missing, [])
        assert prometheus.value('max(carrel_gpus{model="NVIDIA-A100-SXM4-80GB",state="opportunistic"})') == 1
        assert prometheus.value("sum(max by (invariant) (carrel_invariant_violations))") == 0
        assert prometheus.value('sum(carrel_refusals_total{kind="defect"})') == 0
        firing = prometheus.ask("query", query='ALERTS{alertstate="firing"}')["result"]
        assert [each["metric"]["alertname"] for each in firing] == []


def test_the_doctor_finds_nothing_in_the_cluster_and_from_outside(chart: InstalledChart) -> None:
    command = [sys.executable, "-m", "carrel", "doctor", "--carrel-namespace", NAMESPACE, "--output", "json"]
    outcome = subprocess.run(
        [*command, "--kubeconfig", str(chart.api.kubeconfig)], capture_output=True, text=True, check=False
    )
    found = json.loads(outcome.stdout)
    assert [each for each in found if each["state"] != "OK" and BLIND not in each["text"]] == []
    hops = {each["hop"]: each["text"] for each in found}
    assert {"admission", "gpu-scheduler", f"node {chart.node.name}", "account carrel-agent", "invariants"} <= set(hops)
    assert hops["component webhook"] == "2 ready, and answer"
    assert hops["database"].endswith("the newest")
    assert hops["clocks"].startswith("those of 8 pods agree")
    assert "it has been asked" in hops["extender"]
    said = chart.helm("test", "carrel", "--logs", "--timeout", f"{STARTING_S}s")
    states = [line.split()[0] for line in said.splitlines() if line.startswith(("OK ", "WARN ", "FAIL "))]
    assert states.count("OK") > len(hops), said
    assert [line for line in said.splitlines() if line.startswith(("WARN ", "FAIL ")) and BLIND not in line] == []
    assert "it is told to see GPU-" in said
    assert "a pod that asks for no GPU, and tries to see all, sees none" in said
    probes = json.loads(
        chart.api.kubectl("get", "pods", "--selector", "app.kubernetes.io/name=carrel-doctor", "--output", "json")
    )
    assert [each for each in probes["items"] if "deletionTimestamp" not in each["metadata"]] == []


def a_claim_without_a_pod(chart: InstalledChart) -> Json:
    """The last GPU of the node is allocated to it, as a scheduler would."""
    device = max(slices(chart)[0]["spec"]["devices"], key=lambda each: each["attributes"]["index"]["int"])
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev"}}]
    body = {"metadata": {"name": "left"}, "spec": {"devices": {"requests": requests}}}
    claim: Json = chart.api.call("POST", CLAIM.removesuffix("/left"), body)
    place = {"request": "gpu", "driver": "gpu.carrel.dev", "pool": chart.node.name, "device": device["name"]}
    status = {"allocation": {"devices": {"results": [place]}}}
    if device.get("allowMultipleAllocations"):
        place |= {"shareID": claim["metadata"]["uid"], "consumedCapacity": {"memory": "16276Mi"}}
    eventually(lambda: chart.api.call("PUT", f"{CLAIM}/status", {**claim, "status": status}))
    assert len(leases_of(chart, claim["metadata"]["uid"])) == 1
    return claim


def test_an_upgrade_to_the_next_release_keeps_secrets_certificates_and_gpus(
    chart: InstalledChart, tmp_path: Path
) -> None:
    before = chart.get(SECRET)["data"]
    called = {each["name"]: each["clientConfig"] for each in chart.get(HOOKS)["webhooks"]}
    holder, gpu = chart.pod("works"), told(chart, "works")
    secret = {"metadata": {"name": "hub"}, "stringData": {"api-token": hub_provider.SECRET}}
    chart.api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
    chart.node.load(next_image(carrel_image()))
    hub = f"http://{chart.api.slot.machine_address}:{HUB_PORT}"
    sign_in = "config.bookings.signIn.hub"
    values = [f"{sign_in}.url=http://127.0.0.1:{HUB_PORT}", f"{sign_in}.apiUrl={hub}/hub/api"]
    values += [f"config.bookings.publicUrl={PUBLIC_URL}", "booking.hubSecret.name=hub"]
    values += ["config.hubs.usernameDomain=lab.example", "config.tiers.whenFull=wait"]
    values += [f"config.bookings.roles.labAdmins={{{ADA}}}"]
    left = a_claim_without_a_pod(chart)
    chart.helm("upgrade", "carrel", next_chart(tmp_path), "--reset-then-reuse-values", "--set", ",".join(values))
    chart.wait_ready()

    assert images(chart) == {f"carrel:{VERSION}"}
    assert database_level(chart) == next_level()
    assert chart.get(SECRET)["data"] == before
    assert sorted(before) == ["maia-token", "path-secret", "seal-key", "terminator-token"]
    assert len(set(before.values())) == len(before)
    assert {each["name"]: each["clientConfig"] for each in chart.get(HOOKS)["webhooks"]} == called
    claim = {"metadata": {"name": "newer"}, "spec": {"devices": {"count": 1}, FIELD: "blue"}}
    made = chart.api.call("POST", CLAIMS, {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", **claim})
    assert made["spec"][FIELD] == "blue"
    run(chart, pod("also", TELL, {"nvidia.com/gpu": "1"}))
    assert told(chart, "also") != gpu
    assert_kept(chart, holder)
    assert len(leases_of(chart, left["metadata"]["uid"])) == 1, "a claim that was allocated before keeps its GPU"
    chart.api.call("DELETE", CLAIM)
    eventually(lambda: not leases_of(chart, left["metadata"]["uid"]), STARTING_S)


async def test_a_booking_made_in_the_page_covers_a_pod_and_another_one_goes_on_without_its_gpu(
    chart: InstalledChart, record_property: Callable[[str, object], None]
) -> None:
    wanted = {"carrel.dev/gpu-count": "2", "carrel.dev/gpu-model": A6000}
    victim = run(chart, with_notes(pod("bobs"), wanted), who=BOB)
    address = chart.get(f"/api/v1/namespaces/{NAMESPACE}/services/carrel-booking")["spec"]["clusterIP"]
    hub = hub_provider.HubProvider()
    hub.redirect_uri = f"{PUBLIC_URL}{CALLBACK}"
    served = serving(hub.app, Address("0.0.0.0", HUB_PORT))
    async with served, a_browser(f"--host-resolver-rules=MAP {HOST} {address}") as browser:
        page = await browser.new_page(base_url=PUBLIC_URL)
        page.set_default_timeout(STARTING_S * 1000)
        await page.goto("/timeline")
        await page.get_by_label("Model", exact=True).select_option(A6000)
        await page.get_by_role("button", name="Book", exact=True).click()
        await page.wait_for_url(re.compile("/bookings/"))
        record_property("rule_in_force_s", await a_rule_changed_on_the_page_is_in_force_everywhere(chart, page))

    booked = run(chart, with_notes(pod("adas"), {**wanted, "carrel.dev/gpu-count": "1"}), who=ADA)
    eventually(lambda: wait_for(chart, "bobs")["metadata"]["uid"] != victim["metadata"]["uid"], STARTING_S)
    successor = chart.pod("bobs")
    assert tier(booked) == "booked"
    assert "carrel.dev/handed-over" in successor["metadata"]["annotations"]
    assert (len(leases_of(chart, victim["metadata"]["uid"])), len(leases_of(chart, booked["metadata"]["uid"]))) == (
        0,
        1,
    )
    for name in ("adas", "bobs"):
        chart.api.call("DELETE", f"/api/v1/namespaces/default/pods/{name}")
    eventually(lambda: not leases_of(chart, booked["metadata"]["uid"]), STARTING_S)


async def a_rule_changed_on_the_page_is_in_force_everywhere(chart: InstalledChart, page: Page) -> dict[str, float]:
    """The seconds after the click until the service answers by it, the webhook admits a pod by it, and the controller
    has another pod, which was waiting, run on CPU. Both GPUs of the model are taken."""
    before, wanted = processes(chart), {"carrel.dev/gpu-count": "1", "carrel.dev/gpu-model": A6000}
    create_as(chart, EVE, with_notes(pod("waited"), wanted))
    assert await waits_when_full(page)
    await page.goto("/admin/configuration")
    await page.get_by_label("whenFull", exact=True).select_option("cpu")
    await page.get_by_label("waitBeforeCpu", exact=True).fill("1s")
    await page.get_by_label("Reason, for the audit log").fill("a demonstration")
    await page.get_by_role("button", name="Save", exact=True).click()
    seconds, begun = dict[str, float](), time.monotonic()
    await page.get_by_text("Saved. All components follow within seconds.").wait_for()
    assert not await waits_when_full(page)
    seconds["service"] = time.monotonic() - begun
    await asyncio.to_thread(eventually, partial(has_followed, chart, "webhook", "tiers.whenFull: wait → cpu"))
    seconds["webhook"] = time.monotonic() - begun
    await asyncio.to_thread(eventually, partial(is_handed_over, chart, "waited"), STARTING_S)
    seconds["controller"] = time.monotonic() - begun
    admitted = await asyncio.to_thread(run, chart, with_notes(pod("admitted"), wanted), who=EVE)
    assert not leases_of(chart, admitted["metadata"]["uid"])
    assert "tiers.whenFull: wait → cpu" in applied(chart)["history.json"]
    for field in ("tiers.whenFull", "tiers.waitBeforeCpu"):
        said = carrel(chart.api, "config", "reset", field, "--carrel-namespace", NAMESPACE)
        assert said.returncode == 0, said.stderr
    assert "waitBeforeCpu" not in applied(chart)["changes.yaml"]
    assert processes(chart) == before
    for name in ("waited", "admitted"):
        chart.api.call("DELETE", f"/api/v1/namespaces/default/pods/{name}")
    return seconds


async def waits_when_full(page: Page) -> bool:
    """What the booking service tells a hub about pods that find no GPU."""
    # Asked by Chromium itself, which alone knows where the name of the service leads.
    told = await page.evaluate("fetch('/api/v1/startable').then(answer => answer.json())")
    return bool(told["waits_when_full"])


def is_handed_over(chart: InstalledChart, name: str) -> bool:
    pods = chart.get("/api/v1/namespaces/default/pods")["items"]
    return any("carrel.dev/handed-over" in p["metadata"]["annotations"] for p in pods if p["metadata"]["name"] == name)


def test_every_example_runs(chart: InstalledChart) -> None:
    with namespace(chart.api) as ours:
        ada, bob = UserClient(chart.api, ADA), UserClient(chart.api, BOB)
        for file in chart_examples.RUNNING:
            who = ada if file == "booked.yaml" else bob
            for each in chart_examples.documents(file):
                status, answer = who.call("POST", chart_examples.path(each, ours), each)
                assert status == 201, answer
        pods = f"/api/v1/namespaces/{ours}/pods"
        wanted = chart_examples.pods_made()

        def all_run() -> bool:
            phases = [each["status"]["phase"] for each in chart.get(pods)["items"]]
            return phases == ["Running"] * wanted

        eventually(all_run, STARTING_S)
        # It is booked as soon as the pod of before, whose GPU the booking covered, has ended.
        eventually(lambda: tier(chart.pod("booked", ours)) == "booked", STARTING_S)
        for file, words in chart_examples.REFUSED.items():
            (wrong,) = chart_examples.documents(file)
            status, answer = bob.call("POST", pods, wrong)
            assert (status >= 400, words in answer["message"]) == (True, True), answer
        (waits,) = chart_examples.documents("waits-too-large.yaml")
        assert bob.call("POST", pods, waits)[0] == 201

        def says_why() -> bool:
            events = chart.get(f"/api/v1/namespaces/{ours}/events")["items"]
            return any("16 whole" in each["message"] for each in events)

        eventually(says_why, STARTING_S)


def test_without_the_booking_service_bookings_count(chart: InstalledChart) -> None:
    """docs/operate.md says what goes on without each part; here and below."""
    wanted = {"carrel.dev/gpu-model": A6000, "carrel.dev/gpu-count": "1"}
    with chart.away("booking"):
        run(chart, with_notes(pod("covered"), wanted), who=ADA)
        # A pod of before may still be ending, which the booking covers until then.
        eventually(lambda: tier(chart.pod("covered")) == "booked", STARTING_S)


def test_without_the_controller_free_gpus_are_given_out_and_others_are_not_free_again(chart: InstalledChart) -> None:
    uid = chart.pod("also")["metadata"]["uid"]
    with chart.away("controller"):
        chart.api.call("DELETE", "/api/v1/namespaces/default/pods/also")
        eventually(lambda: is_gone(chart.api, "/api/v1/namespaces/default/pods/also"), STARTING_S)
        run(chart, pod("meanwhile", TELL, {"nvidia.com/gpu": "1"}))
        assert len(leases_of(chart, uid)) == 1
    eventually(lambda: not leases_of(chart, uid), STARTING_S)


@pytest.mark.parametrize("component", ["scheduler", "agent"])
def test_without_it_gpu_pods_wait_and_others_run(chart: InstalledChart, component: str) -> None:
    holder = chart.pod("works")
    with chart.away(component):
        if component == "agent":
            shown = f"/api/v1/nodes/{chart.node.name}"
            eventually(lambda: chart.get(shown)["status"]["allocatable"].get("nvidia.com/gpu", "0") == "0", STARTING_S)
        create_as(chart, ADMIN, pod(f"without-{component}", TELL, {"nvidia.com/gpu": "1"}))
        run(chart, pod(f"cpu-without-{component}", "true"), until="Succeeded")
        assert "nodeName" not in chart.pod(f"without-{component}")["spec"]
        assert_kept(chart, holder)
    wait_for(chart, f"without-{component}")


def test_without_the_webhook_gpu_pods_are_refused_and_others_run(chart: InstalledChart) -> None:
    holder = chart.pod("works")
    with chart.away("webhook"):
        status, answer = UserClient(chart.api, BOB).call(
            "POST", "/api/v1/namespaces/default/pods", pod("refused", TELL, {"nvidia.com/gpu": "1"})
        )
        assert (status, 'failed calling webhook "gpu-pods.carrel.dev"' in answer["message"]) == (500, True), answer
        run(chart, pod("cpu-without-webhook", "true"), until="Succeeded")
        assert_kept(chart, holder)


def test_the_way_back_keeps_gpus_bookings_and_claims(chart: InstalledChart) -> None:
    kept = [chart.pod(name) for name in ("works", "meanwhile")]
    bookings = chart.get(BOOKINGS.path())["items"]
    chart.helm("rollback", "carrel", "1")
    assert chart.wait_ready() == {"webhook": 2, "scheduler": 2, "controller": 2, "agent": 1, "booking": 1}

    assert images(chart) == {f"carrel:{__version__}"}
    for each in kept:
        assert_kept(chart, each)
    # The tables stay as the newer release made them, and the older one works with them.
    assert database_level(chart) == next_level()
    said = chart.api.kubectl("logs", "deployment/carrel-booking", "--namespace", NAMESPACE)
    assert f"newer_tables level={next_level()}" in said
    assert len(bookings) == 1
    assert [each["metadata"]["uid"] for each in chart.get(BOOKINGS.path())["items"]] == [
        each["metadata"]["uid"] for each in bookings
    ]
    assert [each["metadata"]["name"] for each in chart.get(CLAIMS)["items"]] == ["newer"]
    run(chart, pod("after", TELL, {"nvidia.com/gpu": "1"}))


def test_after_the_uninstall_nothing_acts_and_what_is_peoples_is_kept(chart: InstalledChart) -> None:
    chart.helm("uninstall", "carrel", "--timeout", f"{STARTING_S}s")
    assert is_gone(chart.api, HOOKS) and is_gone(chart.api, GATE)
    assert is_gone(chart.api, f"{DRA}/deviceclasses/gpu.carrel.dev")
    for kind in (
        "deployments,daemonsets,services,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,jobs",
        "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings",
    ):
        left = json.loads(chart.api.kubectl("get", kind, "--namespace", NAMESPACE, "--output", "json"))["items"]
        assert [each["metadata"]["name"] for each in left if "carrel" in each["metadata"]["name"]] == []
    eventually(lambda: not chart.pods(), STARTING_S)
    shown = chart.get(f"/api/v1/nodes/{chart.node.name}")["status"]["capacity"]
    assert not {"aliyun.com/gpu-mem", "aliyun.com/gpu-count"} & {each for each in shown if shown[each] != "0"}
    assert chart.get(SECRET)["data"]
    assert (
        chart.get(f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/carrel-booking")["status"]["phase"] == "Bound"
    )
    assert [each["metadata"]["name"] for each in chart.get(CLAIMS)["items"]] == ["newer"]
    # A pod without a GPU, and a pod with one, meet nobody any more.
    run(chart, pod("later", "true"), until="Succeeded")
    eventually(lambda: not slices(chart), STARTING_S)  # half a minute after the driver went, the kubelet deletes them
    assert chart.get("/api/v1/namespaces/default/pods/works")["status"]["phase"] == "Running"
