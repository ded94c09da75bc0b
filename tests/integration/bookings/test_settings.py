"""All mistakes in the settings are listed at once and explained, without showing a secret."""

import pytest
from typer.testing import CliRunner

from carrel.__main__ import app
from carrel.admission.settings import WebhookSettings
from carrel.bookings.notifications.settings import NotificationSettings, mistakes_in_notifications
from carrel.bookings.settings import BookingSettings
from carrel.bookings.sign_in.settings import SignInSettings, mistakes
from carrel.lifecycle.settings import ControllerSettings
from carrel.parsing.secret_settings import missing_seal_key, mistakes_in_secrets
from carrel.scheduling.settings import ExtenderSettings

SECRET = "known to this test only"
SECURE = SignInSettings(public_url="https://gpus.lab.org", oidc_issuer="https://login.lab.org", oidc_client_id="carrel")

WRONG = {
    "everybody who reaches us may say who they are": (SignInSettings(dev=True), "0.0.0.0", ["--dev lets everybody in"]),
    "by the name of another machine": (SignInSettings(dev=True), "gpus.lab.org", ["--dev lets everybody in"]),
    "by a proxy on this machine": (
        SignInSettings(dev=True, public_url="https://gpus.lab.org"),
        "127.0.0.1",
        ["--dev lets everybody in"],
    ),
    "for trying it and for real": (
        SignInSettings(dev=True, public_url="http://localhost:8080", oidc_issuer="https://y", oidc_client_id="z"),
        "127.0.0.1",
        ["exclude each other"],
    ),
    "a provider that anybody could play": (
        SignInSettings(public_url="https://x", oidc_issuer="http://login.lab.org", oidc_client_id="carrel"),
        "0.0.0.0",
        ["must be https"],
    ),
    "a provider and nothing else": (
        SignInSettings(oidc_issuer="https://login.lab.org"),
        "0.0.0.0",
        ["needs --oidc-client-id", "needs --public-url"],
    ),
    "an address with a path": (SignInSettings(public_url="https://lab.org/gpus"), "127.0.0.1", ["--public-url"]),
    "a hub that anybody could play": (
        SignInSettings(public_url="https://x", hub_url="http://hub.lab.org", hub_client_secret=SECRET),
        "0.0.0.0",
        ["--hub-url must be https"],
    ),
    "a hub and nothing else": (
        SignInSettings(hub_url="https://hub.lab.org"),
        "0.0.0.0",
        ["needs --hub-client-secret", "needs --public-url"],
    ),
    "a hub for trying it": (
        SignInSettings(
            dev=True, public_url="http://localhost", hub_url="http://localhost:8000", hub_client_secret=SECRET
        ),
        "127.0.0.1",
        ["--dev and --hub-url exclude each other"],
    ),
    "no address of a hub": (
        SignInSettings(public_url="https://x", hub_url="hub.lab.org", hub_api_url="hub:8081", hub_client_secret=SECRET),
        "0.0.0.0",
        ["--hub-url is 'hub.lab.org'", "--hub-api-url is 'hub:8081'"],
    ),
    "a base path without a slash": (SignInSettings(base_path="carrel"), "127.0.0.1", ["--base-path is 'carrel'"]),
    "a base path that leads elsewhere": (SignInSettings(base_path="/a/../b"), "127.0.0.1", ["--base-path"]),
    "a base path with quotes": (SignInSettings(base_path='/a"onload='), "127.0.0.1", ["--base-path"]),
    "an admin who is no person": (SignInSettings(lab_admin=["ev\u0430@lab.org"]), "127.0.0.1", ["--lab-admin is"]),
    "no account": (SignInSettings(service=["webhook"]), "127.0.0.1", ["expected NAMESPACE:NAME"]),
    "no network": (SignInSettings(trusted_proxy=["ingress"]), "127.0.0.1", ["--trusted-proxy"]),
}


@pytest.mark.parametrize(("settings", "address", "told"), WRONG.values(), ids=WRONG)
def test_mistakes_in_the_settings_of_sign_in_are_explained(
    settings: SignInSettings, address: str, told: list[str]
) -> None:
    found = list(mistakes(settings, address))

    assert len(found) == len(told)
    assert all(word in mistake for word, mistake in zip(told, found, strict=True))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_dev_mode_is_allowed_on_this_machine(address: str) -> None:
    assert not list(mistakes(SignInSettings(dev=True), address))


def test_a_provider_and_an_address_are_enough() -> None:
    assert not list(mistakes(SECURE, "0.0.0.0"))


WRONG_NOTIFICATIONS = {
    "no address to write from": (NotificationSettings(smtp_url="smtp://mail.lab.org"), "--mail-from"),
    "no mail server": (NotificationSettings(smtp_url="mail:hunter2", mail_from="a@lab.org"), "smtp[s]://"),
    "no webhook": (NotificationSettings(webhook_url="chat.lab.org", webhook_secret="s" * 16), "expected https://"),
    "no secret": (NotificationSettings(webhook_url="https://chat"), "needs --webhook-secret"),
}


@pytest.mark.parametrize(("settings", "told"), WRONG_NOTIFICATIONS.values(), ids=WRONG_NOTIFICATIONS)
def test_mistakes_in_the_settings_of_notifications_are_explained(settings: NotificationSettings, told: str) -> None:
    (mistake,) = mistakes_in_notifications(settings)

    assert told in mistake
    assert "hunter2" not in mistake


SHORT = "hunter2"


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (NotificationSettings(webhook_secret=SHORT), "--webhook-secret"),
        (SignInSettings(hub_client_secret=SHORT), "--hub-client-secret"),
        (BookingSettings(maia_token=SHORT), "--maia-token"),
        (ControllerSettings(terminator_token=SHORT), "--terminator-token"),
        (ExtenderSettings(seal_key=f"{SECRET},{SHORT}"), "--seal-key"),
        (WebhookSettings(seal_key=SHORT), "--seal-key"),
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
    words = [component, "--kubeconfig", "/nowhere", "--seal-key", key]
    done = CliRunner(env={"CARREL_SEAL_KEY": ""}).invoke(app, words, prog_name="carrel")

    assert done.exit_code == 2
    assert "--seal-key" in done.stderr and "openssl rand -hex 32" in done.stderr and "hunter2" not in done.stderr
    assert key or "--seal-key none" in done.stderr


def test_a_cluster_without_users_needs_no_seal() -> None:
    assert not list(missing_seal_key(WebhookSettings(server="http://127.0.0.1:1")))
    assert not list(missing_seal_key(WebhookSettings(seal_key="none")))
    assert WebhookSettings(seal_key="none").seal() is None
    assert WebhookSettings(seal_key=SECRET).seal() is not None
    assert not list(missing_seal_key(BookingSettings())), "it seals nothing"


def test_all_mistakes_are_in_one_answer() -> None:
    words = ["booking", "--dev", "--bind-address", "0.0.0.0", "--zone", "Mars", "--smtp-url", "smtp://mail.lab.org"]
    done = CliRunner().invoke(app, words, prog_name="carrel")

    assert done.exit_code == 2
    for word in ("--dev lets everybody in", "--zone is 'Mars'", "--mail-from", "Try:  carrel booking --help"):
        assert word in done.stderr
