"""All mistakes in the settings are listed at once and explained, without showing a secret."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from carrel.__main__ import app
from carrel.admission.settings import WebhookSettings
from carrel.bookings.notifications.settings import NotificationSettings, mistakes_in_notifications
from carrel.bookings.settings import BookingSettings
from carrel.bookings.sign_in.settings import SignInSettings, mistakes
from carrel.configuration.schema import Bookings, HubSignIn, Notifications, Oidc, SignIn
from carrel.lifecycle.settings import ControllerSettings
from carrel.parsing.secret_settings import missing_seal_key, mistakes_in_secrets
from carrel.scheduling.settings import ExtenderSettings

SECRET = "known to this test only"
AT_HUB = Bookings(public_url="http://localhost", sign_in=SignIn(hub=HubSignIn(url="http://localhost:8000")))
AT_PROVIDER = Bookings(
    public_url="http://localhost", sign_in=SignIn(oidc=Oidc(issuer="https://login.lab.org", client_id="carrel"))
)

WRONG = {
    "everybody who reaches us may say who they are": (True, "", Bookings(), "0.0.0.0", "--dev lets everybody in"),
    "by the name of another machine": (True, "", Bookings(), "gpus.lab.org", "--dev lets everybody in"),
    "by a proxy on this machine": (
        *(True, "", Bookings(public_url="https://gpus.lab.org"), "127.0.0.1", "--dev lets everybody in"),
    ),
    "for trying it and for real": (True, "", AT_PROVIDER, "127.0.0.1", "exclude each other"),
    "a hub for trying it": (True, SECRET, AT_HUB, "127.0.0.1", "--dev and bookings.signIn.hub.url exclude each other"),
    "a hub and no secret": (False, "", AT_HUB, "0.0.0.0", "needs CARREL_HUB_CLIENT_SECRET"),
}


@pytest.mark.parametrize(("dev", "secret", "bookings", "address", "told"), WRONG.values(), ids=WRONG)
def test_mistakes_in_the_settings_of_sign_in_are_explained(
    dev: bool, secret: str, bookings: Bookings, address: str, told: str
) -> None:
    (found,) = mistakes(SignInSettings(dev=dev, hub_client_secret=secret), bookings, address)

    assert told in found


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_dev_mode_is_allowed_on_this_machine(address: str) -> None:
    assert not list(mistakes(SignInSettings(dev=True), Bookings(), address))


def test_a_provider_and_an_address_are_enough() -> None:
    assert not list(mistakes(SignInSettings(), AT_PROVIDER, "0.0.0.0"))


WRONG_NOTIFICATIONS = {
    "no address to write from": ("smtp://mail.lab.org", Notifications(), "notifications.mailFrom"),
    "no mail server": ("mail:hunter2", Notifications(mail_from="a@lab.org"), "smtp[s]://"),
    "no secret": ("", Notifications(webhook_url="https://chat"), "needs CARREL_WEBHOOK_SECRET"),
}


@pytest.mark.parametrize(("smtp_url", "given", "told"), WRONG_NOTIFICATIONS.values(), ids=WRONG_NOTIFICATIONS)
def test_mistakes_in_the_settings_of_notifications_are_explained(
    smtp_url: str, given: Notifications, told: str
) -> None:
    (mistake,) = mistakes_in_notifications(NotificationSettings(smtp_url=smtp_url), given)

    assert told in mistake
    assert "hunter2" not in mistake


SHORT = "hunter2"


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (NotificationSettings(webhook_secret=SHORT), "CARREL_WEBHOOK_SECRET"),
        (SignInSettings(hub_client_secret=SHORT), "CARREL_HUB_CLIENT_SECRET"),
        (BookingSettings(maia_token=SHORT), "CARREL_MAIA_TOKEN"),
        (ControllerSettings(terminator_token=SHORT), "CARREL_TERMINATOR_TOKEN"),
        (ExtenderSettings(seal_key=f"{SECRET},{SHORT}"), "CARREL_SEAL_KEY"),
        (WebhookSettings(seal_key=SHORT), "CARREL_SEAL_KEY"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_secret_that_can_be_guessed_is_refused_and_not_shown(settings: object, option: str) -> None:
    (mistake,) = mistakes_in_secrets(settings)

    assert mistake.startswith(f"{option} has 7 characters") and "openssl rand -hex 32" in mistake
    assert SHORT not in mistake


@pytest.mark.parametrize("component", ["webhook", "extender", "controller"])
@pytest.mark.parametrize("key", ["", "hunter2"], ids=["none", "a short one"])
def test_in_a_cluster_pods_are_sealed_with_a_secret_or_the_admin_says_that_they_are_not(
    component: str, key: str
) -> None:
    words = [component, "--kubeconfig", "/nowhere"]
    done = CliRunner(env={"CARREL_SEAL_KEY": key}).invoke(app, words, prog_name="carrel")

    assert done.exit_code == 2
    assert "CARREL_SEAL_KEY" in done.stderr and "openssl rand -hex 32" in done.stderr and "hunter2" not in done.stderr
    assert key or "CARREL_SEAL_KEY=none" in done.stderr


def test_a_cluster_without_users_needs_no_seal() -> None:
    assert not list(missing_seal_key(WebhookSettings(server="http://127.0.0.1:1")))
    assert not list(missing_seal_key(WebhookSettings(seal_key="none")))
    assert WebhookSettings(seal_key="none").seal() is None
    assert WebhookSettings(seal_key=SECRET).seal() is not None
    assert not list(missing_seal_key(BookingSettings())), "it seals nothing"


def test_all_mistakes_are_in_one_answer(tmp_path: Path) -> None:
    words = ["booking", "--dev", "--bind-address", "0.0.0.0", "--port", "0"]
    words += ["--inventory", str(tmp_path / "gpus.yaml"), "--database", f"sqlite:///{tmp_path}/carrel.db"]
    (tmp_path / "gpus.yaml").write_text("nodes: [{name: n1, gpus: [{model: A100, memoryMiB: 40960}]}]")
    env = {"CARREL_SMTP_URL": "smtp://mail.lab.org", "CARREL_BOOKINGS_ELSEWHERE": "javascript:alert(1)"}
    done = CliRunner().invoke(app, words, prog_name="carrel", env=env)

    assert done.exit_code == 2
    for word in (
        "--dev lets everybody in",
        "notifications.mailFrom",
        "Try:  carrel booking --help",
        "--bookings-elsewhere is",
    ):
        assert word in done.stderr
