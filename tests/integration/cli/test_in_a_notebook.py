"""The commands in the terminal of a notebook: JupyterHub's token instead of a login."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from carrel.bookings.app import booking_app
from carrel.bookings.sign_in.authenticator import SignInMethods
from carrel.bookings.sign_in.hub import HubClient, HubTokens
from carrel.configuration.schema import Bookings, HubSignIn, SignIn
from carrel.dialects.jupyter import HubPeople
from carrel.http.serving import Address, serving
from tests.integration.bookings.conftest import opened, with_tables
from tests.integration.pages.test_coverage_on_pages import Seen, a_cluster
from tests.kit import hub_provider
from tests.kit.booking import MEMBER, Opened
from tests.kit.carrel_command import Result, carrel
from tests.kit.hub_provider import HubProvider

__all__ = ["opened", "with_tables"]


@dataclass
class Notebook:
    home: Path
    environment: dict[str, str]

    async def types(self, *words: str, **environment: str) -> Result:
        return await carrel(*words, **{**self.environment, **environment})


@contextlib.asynccontextmanager
async def a_notebook(opened: Opened, hub: HubProvider, home: Path) -> AsyncIterator[Notebook]:
    """Of ada, on a hub that the booking service knows."""
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        hub.url = await stack.enter_async_context(serving(hub.app, Address()))
        authenticator = opened.service.authenticator
        at_hub = SignIn(hub=HubSignIn(url=hub.url))
        bookings = Bookings(public_url="https://gpus.lab.org", sign_in=at_hub)
        client = HubClient(bookings, HubPeople("lab.org"), hub_provider.SECRET, http)
        methods = SignInMethods(hub=HubTokens(client, authenticator.roles, opened.clock.seconds))
        service = replace(opened.service, authenticator=replace(authenticator, methods=methods))
        url = await stack.enter_async_context(serving(booking_app(service), Address()))
        yield Notebook(
            home,
            {
                "CARREL_URL": url,
                "JUPYTERHUB_API_TOKEN": hub.token(),
                "HOME": str(home),
                "XDG_CONFIG_HOME": str(home),
                "KUBERNETES_SERVICE_HOST": "",
            },
        )


@pytest.fixture
def hub() -> HubProvider:
    return HubProvider()


async def test_a_person_books_in_a_notebook_without_a_login(opened: Opened, hub: HubProvider, tmp_path: Path) -> None:
    async with a_notebook(opened, hub, tmp_path) as notebook:
        assert "2 of 2" in (await notebook.types("free")).out
        booked = await notebook.types("book", "a6000", "--days", "2")
        assert (booked.code, "ada@lab.org" in booked.out) == (0, True), booked.err
        assert "ada@lab.org" in (await notebook.types("show")).out
        assert (await notebook.types("extend", "--days", "1")).code == 0

        without = await notebook.types("list", JUPYTERHUB_API_TOKEN="")
        assert (without.code, "Not logged in" in without.err) == (2, True)


async def test_a_login_wins_over_the_notebooks_token(opened: Opened, hub: HubProvider, tmp_path: Path) -> None:
    bob = await opened.caller("bob@lab.org")
    async with a_notebook(opened, hub, tmp_path) as notebook:
        given = await notebook.types("book", "a6000", "--days", "2", CARREL_TOKEN=bob.token)
        assert (await notebook.types("login", CARREL_TOKEN=bob.token)).code == 0
        saved = await notebook.types("show")

    assert "bob@lab.org" in given.out and "bob@lab.org" in saved.out
    assert hub.asked == [], "the notebook's token was not sent"


async def test_a_token_that_is_of_no_use_is_refused_in_three_lines(
    opened: Opened, hub: HubProvider, tmp_path: Path
) -> None:
    async with a_notebook(opened, hub, tmp_path) as notebook:
        refused = await notebook.types("list", JUPYTERHUB_API_TOKEN=hub.token(scopes=()))

    assert refused.code == 7
    assert "access:services!service=carrel" in refused.err and "Try:  carrel login" in refused.err


async def test_why_asks_the_booking_service_where_the_cluster_cannot_be_read(
    opened: Opened, hub: HubProvider, tmp_path: Path
) -> None:
    async with a_cluster(opened, gpus=1) as seen, a_notebook(seen.opened, hub, tmp_path) as notebook:
        await _a_full_cluster(seen)
        all_waiting = await notebook.types("why")
        one = await notebook.types("why", "pod/mine")
        other = await notebook.types("why", "pod/theirs")

    assert all_waiting.out.startswith("lab/mine: ")
    assert "Booking: no booking; waits for a free GPU" in one.out
    assert "lab/theirs of bob@lab.org" in one.out
    assert (other.code, "No pod theirs of yours" in other.err) == (4, True)


async def test_why_of_a_notebook_without_its_gpu_is_what_home_says(
    opened: Opened, hub: HubProvider, tmp_path: Path
) -> None:
    lost = "this pod runs without a GPU: the one that it had was needed for a booked pod on Mon 16 Nov 14:02 UTC"
    notes = {"carrel.dev/user": MEMBER, "carrel.dev/runs-without-gpu": lost, "carrel.dev/asked-for": '{"gpus": 1}'}
    async with a_cluster(opened, gpus=1) as seen, a_notebook(seen.opened, hub, tmp_path) as notebook:
        await seen.replica.sees(await seen.lab.pod("jupyter-ada", annotations=notes))
        one = await notebook.types("why", "pod/jupyter-ada")
        everything = await notebook.types("why")
        home = await seen.shows("/")

    why = f"{lost}. Now: one is free now; stop this pod and start it again to get it"
    assert (one.out, everything.out) == (f"{why}\n", f"lab/jupyter-ada: {why}\n")
    assert why in home and "asks for no GPU" not in home


async def _a_full_cluster(seen: Seen) -> None:
    await seen.runs("theirs", "bob@lab.org")
    await seen.pod("mine")


async def test_why_says_what_is_missing(opened: Opened, hub: HubProvider, tmp_path: Path) -> None:
    async with a_notebook(opened, hub, tmp_path) as notebook:
        nowhere = await notebook.types("why", CARREL_URL="")
        no_cluster = await notebook.types("why")

    assert (nowhere.code, "CARREL_URL does not say where the booking service is" in nowhere.err) == (2, True)
    assert (no_cluster.code, "This booking service has no cluster" in no_cluster.err) == (4, True)
