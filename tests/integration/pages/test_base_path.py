"""Under a base path every address that the service gives leads under it. Nothing of the host beyond it is touched."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html import unescape

import pytest

from carrel.bookings.app import booking_app, fastapi_app
from carrel.bookings.pages.layout import HERE
from carrel.bookings.people import Role
from carrel.bookings.sign_in.authenticator import SignInMethods
from tests.integration.pages.visitor import Visitor, a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, Caller, Opened, made
from tests.kit.gpus import N1, a_node
from tests.kit.lab import a_lab

BASE = "/services/carrel"
LINK = re.compile(r"""\b(?:href|src|action|formaction|hx-\w+|sse-connect|data-url|poster)=["']([/][^"']*)["']""")
"""Addresses that begin with a slash, in any attribute that may have one."""
PAGES = ["/", "/timeline", "/timeline/table", "/timeline/verdict?model=a6000", "/map", "/usage", "/admin", "/nowhere"]


@pytest.fixture
async def under(opened: Opened) -> AsyncIterator[Opened]:
    """The service under a base path, with a cluster that has one node."""
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica(is_shown=True) as replica:
        opened.clock.now = lab.clock.now
        authenticator = opened.service.authenticator
        options = replace(authenticator.options, base_path=BASE)
        service = replace(
            opened.service,
            authenticator=replace(authenticator, options=options, methods=SignInMethods(is_dev=True)),
            cluster_view=replica.view,
        )
        yield replace(opened, service=service, app=booking_app(service))


@pytest.fixture
async def eva(under: Opened) -> Visitor:
    """A platform admin, who sees every page."""
    return await a_visitor(under, ADMIN, Role.PLATFORM_ADMIN)


@pytest.fixture
async def booking(under: Opened) -> str:
    return str((await made(await under.caller(ADMIN), days=2))["id"])


def links_of(page: str) -> list[str]:
    return [unescape(link) for link in LINK.findall(page)]


async def test_every_link_form_and_script_of_every_page_is_under_the_base_path(
    under: Opened, eva: Visitor, booking: str
) -> None:
    view = under.service.cluster_view
    assert view is not None
    gpus = [f"/map/gpus/{entry.gpu.uuid}" for entry in view.ledger.entries(N1)]
    changes = [f"/bookings/{booking}", f"/bookings/{booking}/verdict?end=2026-11-20T12:00"]
    seen: dict[str, list[str]] = {}
    for path in [*PAGES, *changes, *gpus]:
        answer = await eva.get(BASE + path)
        assert answer.status in (200, 404), (path, answer.status)
        seen[path] = links_of(text_of(answer))

    astray = {path: [link for link in links if not link.startswith(f"{BASE}/")] for path, links in seen.items()}
    assert {path: links for path, links in astray.items() if links} == {}
    found = {link.removeprefix(BASE) for links in seen.values() for link in links}
    assert {"/", "/timeline", "/static/carrel.js", "/sign-out", "/admin/roles", f"/bookings/{booking}"} <= found
    assert any(link.startswith("/map/stream") for link in found)
    assert any(link.startswith("/map/gpus/") for link in found)


async def test_the_base_path_ends_where_another_service_of_the_host_begins(eva: Visitor) -> None:
    assert (await eva.get(BASE)).status == 200, "without a slash at the end"
    assert (await eva.get(f"{BASE}x/")).status == 404


async def test_every_template_is_seen_by_the_rule_about_links() -> None:
    """Whatever a template writes with a slash must be found: by the attributes that get the base path."""
    known = re.compile(r'\b(href|action|src|hx-get|sse-connect)="/')
    for template in (HERE / "templates").glob("*.html"):
        source = template.read_text()
        assert len(LINK.findall(source)) == len(known.findall(source)), template.name


def test_no_script_of_ours_knows_an_address() -> None:
    script = (HERE / "static" / "carrel.js").read_text()
    assert not re.findall(r"""fetch\(|EventSource|location\s*=|["'`]/[a-z]""", script)
    assert not re.search(r"url\(\s*[\"']?/", (HERE / "static" / "carrel.css").read_text())


async def test_redirects_lead_under_the_base_path(eva: Visitor, under: Opened, booking: str) -> None:
    removed = await eva.send(f"{BASE}/feed/revoke")
    cancelled = await eva.send(f"{BASE}/bookings/{booking}/cancel", reason="x")
    out = await eva.send(f"{BASE}/sign-out")
    stranger = await under.nobody.get(f"{BASE}/timeline?from=2026-11-20", accept="text/html")

    assert removed.headers["location"] == f"{BASE}/?done=feed-revoked"
    assert cancelled.headers["location"].startswith(f"{BASE}/bookings/{booking}?")
    assert out.headers["location"] == f"{BASE}/"
    assert stranger.headers["location"] == f"{BASE}/sign-in?back=%2Ftimeline%3Ffrom%3D2026-11-20"


@pytest.mark.parametrize(
    "wanted", ["/../../user/eve/", "/%2e%2e/hub/", "/..\\..\\hub", "//evil.example", "https://evil.example"]
)
async def test_signing_in_leads_to_no_other_service_of_the_host(under: Opened, wanted: str) -> None:
    form = f"email=ada%40lab.org&role=member&back={wanted}".encode()
    answer = await under.nobody.post(
        f"{BASE}/sign-in/dev", form, host="localhost", content_type="application/x-www-form-urlencoded"
    )
    assert (answer.status, answer.headers["location"]) == (303, f"{BASE}/")


async def test_cookies_are_for_the_base_path_only(under: Opened) -> None:
    form = b"email=ada%40lab.org&role=member"
    answer = await under.nobody.post(
        f"{BASE}/sign-in/dev", form, host="localhost", content_type="application/x-www-form-urlencoded"
    )
    assert "; Path=/services/carrel;" in answer.headers["set-cookie"]


def test_with_https_the_cookie_has_the_prefix_that_a_path_allows(opened: Opened) -> None:
    options = replace(opened.service.authenticator.options, public_url="https://hub.lab.org")
    assert (options.cookie, options.cookie_path) == ("__Host-carrel", "/")

    under_a_path = replace(options, base_path=BASE)
    assert (under_a_path.cookie, under_a_path.cookie_path) == ("__Secure-carrel", BASE)
    assert (options.own_source, under_a_path.own_source) == ("'self'", f"https://hub.lab.org{BASE}/")
    assert (options.link, under_a_path.link) == ("https://hub.lab.org", f"https://hub.lab.org{BASE}")


async def test_pages_load_nothing_of_other_services_of_the_host(under: Opened) -> None:
    options = replace(under.service.authenticator.options, public_url="https://hub.lab.org")
    service = replace(under.service, authenticator=replace(under.service.authenticator, options=options))
    for path in (f"{BASE}/sign-in", f"{BASE}/api/v1/me"):
        policy = (await Caller(booking_app(service)).get(path)).headers["content-security-policy"]
        assert f"script-src https://hub.lab.org{BASE}/;" in policy
        assert f"form-action https://hub.lab.org{BASE}/;" in policy
        assert "'self'" not in policy


async def test_the_api_and_its_document_are_under_the_base_path(under: Opened) -> None:
    ada = await under.caller(MEMBER)
    document = json.loads((await ada.get(f"{BASE}/api/v1/openapi.json")).body)
    made_here = await ada.post(f"{BASE}/api/v1/bookings", {"model": "a6000", "days": 1})
    feed = await ada.post(f"{BASE}/api/v1/feed")
    startable = await ada.get(f"{BASE}/api/v1/startable")

    assert document["servers"] == [{"url": BASE}]
    assert made_here.headers["location"] == f"{BASE}/api/v1/bookings/{made_here.json['id']}"
    assert feed.json["url"].startswith(f"http://carrel.test{BASE}/api/v1/feeds/")
    assert startable.json["book_url"] == f"http://carrel.test{BASE}/timeline"
    assert (await under.nobody.get(feed.json["url"].removeprefix("http://carrel.test"))).status == 200


async def test_who_does_not_come_through_the_proxy_needs_no_base_path(under: Opened) -> None:
    """Probes, the hub's own questions and Carrel's components."""
    ada = await under.caller(MEMBER)
    assert (await ada.get("/api/v1/me")).status == 200
    assert (await under.nobody.get("/healthz")).status == 200
    made_here = await ada.post("/api/v1/bookings", {"model": "a6000", "days": 1})
    assert made_here.headers["location"] == f"/api/v1/bookings/{made_here.json['id']}"


async def test_without_a_base_path_nothing_is_added(opened: Opened) -> None:
    eva = await a_visitor(opened, ADMIN, Role.PLATFORM_ADMIN)
    assert "/timeline" in links_of(text_of(await eva.get("/")))
    assert "servers" not in fastapi_app(opened.service).openapi()
    assert (await eva.get(f"{BASE}/")).status == 404


async def test_the_small_pages_around_signing_in_are_under_the_base_path(under: Opened, eva: Visitor) -> None:
    asked = f"/cli-login?port=50000&state={'s' * 43}&challenge={'c' * 43}&label=x&scopes=read"
    for path in ("/sign-in", "/sign-in/callback", "/oauth_callback", "/signed-out", asked):
        links = links_of(text_of(await eva.get(BASE + path)))
        assert links and all(link.startswith(f"{BASE}/") for link in links), (path, links)
