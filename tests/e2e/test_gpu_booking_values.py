"""What the chart gpu-booking renders, with the real helm: Carrel under MAIA's names, and sentences about bad values."""

from base64 import b64decode

import pytest
import yaml

from testbed.processes import Failed
from tests.e2e.chart import CHART, by_name, helm
from tests.e2e.chart import rendered as carrel_rendered
from tests.e2e.pods import Json

GPU_BOOKING = CHART.parent / "gpu-booking"
NAMESPACE = "gpu-booking"
MAIA = ("apiUrl=https://maia.example/maia-api/gpu-schedulability/", "apiToken=of-the-dashboard")


def rendered(*values: str) -> list[Json]:
    options = [word for each in values for word in ("--set", each)]
    text = helm("template", "gpu-booking", GPU_BOOKING, "-n", NAMESPACE, "--kube-version", "v1.33.0", *options)
    return [each for each in yaml.safe_load_all(text) if each]


def test_it_renders_all_of_carrel_and_three_names_are_maias() -> None:
    ours = {
        (kind, NAMESPACE if namespace == "gpus" else namespace, name)
        for kind, namespace, name in by_name(carrel_rendered())
    }
    theirs = set(by_name(rendered()))
    assert ours - theirs == {("MutatingWebhookConfiguration", "", "carrel"), ("Service", NAMESPACE, "carrel-webhook")}
    assert theirs - ours == {
        ("MutatingWebhookConfiguration", "", "gpu-booking-webhook"),
        ("Service", NAMESPACE, "gpu-booking-mutating-webhook"),
    }
    webhook = by_name(rendered())["Deployment", NAMESPACE, "carrel-webhook"]["spec"]["template"]["spec"]
    told = {each["name"]: each.get("value") for each in webhook["containers"][0]["env"]}
    assert told["CARREL_TLS_SECRET"] == "gpu-booking-webhook-tls"
    assert told["CARREL_CONFIGURATION"] == "gpu-booking-webhook"


def test_with_an_address_bookings_are_asked_for_there_with_the_token() -> None:
    found = by_name(rendered(*MAIA, "gpuStatsUrl=https://maia.example/maia-api/gpu-stats/", f"namespace={NAMESPACE}"))
    assert ("Deployment", NAMESPACE, "carrel-booking") not in found
    secret = found["Secret", NAMESPACE, "carrel-bookings-elsewhere"]["data"]
    assert b64decode(secret["token"]) == b"of-the-dashboard"
    for part in ("webhook", "controller"):
        spec = found["Deployment", NAMESPACE, f"carrel-{part}"]["spec"]["template"]["spec"]
        told = {each["name"]: each for each in spec["containers"][0]["env"]}
        assert told["CARREL_API_URL"]["value"] == "https://maia.example/maia-api/gpu-schedulability/"
        reference = told["CARREL_API_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": "carrel-bookings-elsewhere", "key": "token"}


def test_without_an_address_the_token_is_that_of_carrels_own_booking_service() -> None:
    found = by_name(rendered("apiToken=0123456789abcdef"))
    assert ("Deployment", NAMESPACE, "carrel-booking") in found
    assert b64decode(found["Secret", NAMESPACE, "carrel-secrets"]["data"]["maia-token"]) == b"0123456789abcdef"
    random = by_name(rendered())["Secret", NAMESPACE, "carrel-secrets"]["data"]["maia-token"]
    assert len(b64decode(random)) == 48


def test_values_of_carrel_are_given_under_its_name() -> None:
    found = by_name(rendered("carrel.agent.simulate=2xTesla-T4:15360", "carrel.webhook.replicas=3"))
    assert found["Deployment", NAMESPACE, "carrel-webhook"]["spec"]["replicas"] == 3
    assert ("ConfigMap", NAMESPACE, "carrel-simulated-gpus") in found


BAD = {
    "the token of the document": (
        ("apiToken=secret-token",),
        "everybody knows; write the token of your dashboard",
    ),
    "the token of the document, with an address": ((MAIA[0], "apiToken=secret-token"), "which everybody knows"),
    "an address without a token": ((MAIA[0],), "apiUrl needs apiToken, the token that the dashboard expects"),
    "a token that can be guessed": (("apiToken=short",), "has 5 characters, which can be guessed"),
    "an address that is none": (
        ("apiUrl=maia", MAIA[1]),
        "write an address such as https://maia.example/maia-api/gpu-schedulability/",
    ),
    "half of the addresses": (("gpuStatsUrl=https://maia.example/",), "write both for bookings in MAIA's dashboard"),
    "another namespace": (("namespace=elsewhere",), "write --namespace elsewhere, or leave namespace empty"),
    "an unknown key": (("apiURL=https://maia.example",), "additional properties 'apiURL' not allowed"),
    "a wrong type": (("apiToken=12345",), "got number, want string"),
    "a value of Carrel that is none": (("carrel.mode=both",), "value must be one of 'native', 'coexist'"),
    "values of Carrel that exclude each other": (("carrel.booking.replicas=2",), "a volume with SQLite serves one"),
}


@pytest.mark.parametrize(("options", "sentence"), BAD.values(), ids=BAD)
def test_a_value_that_cannot_be_used_is_refused_with_what_to_write(options: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(Failed) as refused:
        rendered(*options)
    assert sentence in str(refused.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Failed) as refused:
        rendered("apiUrl=maia", "apiToken=secret-token", "namespace=elsewhere")
    assert str(refused.value).count("\n  - ") == 3
