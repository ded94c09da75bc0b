"""The cluster map and its stream: whoever looks sees a card fill when a pod starts.

The stream sends only what changed since the page was made, or since what the browser got last: a node's picture and its
rows of the table, and the totals. When nodes came or went, or another process is asked than before, the whole map is
sent. Looking costs nothing where nothing changes: the ledger counts its changes.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from carrel.bookings.pages import cluster_map
from carrel.bookings.pages.cluster_map import Totals
from carrel.bookings.pages.layout import Shell
from carrel.bookings.pages.services import ClusterSight
from carrel.bookings.sign_in.identity import CurrentPerson
from carrel.http.problems import Problem
from carrel.ledger.ledger import Ledger

LOOK_EVERY_S = 0.5
"""How soon a change is shown; more often, people could not follow."""
PROOF_OF_LIFE = 40
"""After so many looks without a change something is sent, or proxies would close the connection: 20 s."""
LOOKS = 1200
"""After ten minutes a stream ends and the browser asks for another: who has signed out meanwhile gets none."""
MOST_NODES = 200
"""On one page. Of more, people narrow it by name: nobody reads a thousand pictures."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Up to where a browser knows the map. It carries it back as it got it."""

    life: str
    """Of the process: each counts its ledger's changes by itself."""
    moment: int
    nodes: int
    """Tells one set of nodes from another."""

    def __str__(self) -> str:
        return f"{self.life}-{self.moment}-{self.nodes}"

    def since(self, known: str, ledger: Ledger) -> Sequence[str] | None:
        """The nodes that changed since that mark; None: everything must be shown anew."""
        life, _, rest = known.partition("-")
        moment, _, nodes = rest.partition("-")
        is_ours = life == self.life and nodes == str(self.nodes) and moment.isascii() and moment.isdigit()
        return ledger.changed_since(int(moment)) if is_ours and len(moment) < 20 else None


class MapPage:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._desk = shell.desk
        self._life = secrets.token_hex(4)
        self._counted: tuple[int, Totals] | None = None

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/map", self.show, methods=["GET"], response_model=None)
        router.add_api_route("/map/stream", self.stream, methods=["GET"], response_model=None)
        router.add_api_route("/map/cards/{uuid:path}", self.card, methods=["GET"], response_model=None)

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        sight = self._desk.sight
        if sight is None:
            return self._shell.page(request, person, "no_map.html")
        wanted, uuid = _wanted(request), request.query_params.get("card", "")
        names = shown(sight.ledger, wanted)
        return self._shell.page(
            request,
            person,
            "map.html",
            nodes=[cluster_map.see_node(sight.ledger, name, sight.seen) for name in names],
            totals=self._totals(sight.ledger),
            card=cluster_map.see_card(sight.ledger, uuid, sight.seen) if uuid else None,
            draw=cluster_map.draw,
            mark=str(self._mark(sight, names)),
            wanted=wanted,
            left_out=sum(wanted in name for name in sight.ledger.nodes) - len(names),
            is_read=sight.is_synced(),
        )

    async def card(self, request: Request, person: CurrentPerson, uuid: str) -> Response:
        """Who holds one card: only that part of the page."""
        sight = self._desk.sight
        found = cluster_map.see_card(sight.ledger, uuid, sight.seen) if sight else None
        return HTMLResponse(self._shell.fragment("card.html", card=found))

    async def stream(self, request: Request, person: CurrentPerson) -> Response:
        if self._desk.sight is None:
            raise Problem(
                404, "no-cluster", "There is no map", "This service runs without a cluster.", "open /timeline"
            )
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        changes = self._changes(self._desk.sight, since, _wanted(request))
        return StreamingResponse(changes, media_type="text/event-stream", headers=headers)

    def _mark(self, sight: ClusterSight, names: Sequence[str]) -> Mark:
        return Mark(self._life, sight.ledger.moment, crc32("\n".join(names).encode()))

    async def _changes(self, sight: ClusterSight, known: str, wanted: str) -> AsyncIterator[str]:
        looked, quiet = -1, 0
        for _ in range(LOOKS):
            if sight.ledger.moment != looked:
                looked, quiet = sight.ledger.moment, 0
                names = shown(sight.ledger, wanted)
                mark = self._mark(sight, names)
                if known != str(mark):
                    yield "".join(self._events(sight, names, mark.since(known, sight.ledger))) + f"id: {mark}\n\n"
                    known = str(mark)
            else:
                quiet += 1
                if quiet % PROOF_OF_LIFE == 0:
                    yield ": all is well\n\n"
            if await _leaves(self._desk.leaving):
                return

    def _totals(self, ledger: Ledger) -> Totals:
        """All who look at the same moment are told the same: it is counted once."""
        if self._counted is None or self._counted[0] != ledger.moment:
            self._counted = (ledger.moment, cluster_map.totals(ledger))
        return self._counted[1]

    def _events(self, sight: ClusterSight, names: Sequence[str], changed: Sequence[str] | None) -> Iterator[str]:
        fragment, draw = self._shell.fragment, cluster_map.draw
        yield event("totals", fragment("totals.html", totals=self._totals(sight.ledger)))
        again = names if changed is None else [name for name in names if name in set(changed)]
        nodes = [cluster_map.see_node(sight.ledger, name, sight.seen) for name in again]
        if changed is None:
            yield event("nodes", fragment("nodes.html", nodes=nodes, draw=draw))
            yield event("rows", fragment("rows.html", nodes=nodes))
            return
        for node in nodes:
            yield event(f"node-{node.name}", fragment("node.html", node=node, draw=draw))
            yield event(f"rows-{node.name}", fragment("node_rows.html", node=node))


def _wanted(request: Request) -> str:
    return request.query_params.get("node", "").strip().lower()[:100]


def shown(ledger: Ledger, wanted: str) -> list[str]:
    """The nodes whose name contains that, as many as a page may have."""
    return sorted(name for name in ledger.nodes if wanted in name)[:MOST_NODES]


def event(name: str, markup: str) -> str:
    lines = "".join(f"data: {line}\n" for line in markup.splitlines() if line.strip())
    return f"event: {name}\n{lines}\n"


async def _leaves(leaving: asyncio.Event) -> bool:
    """Waits until it is time to look again; true if the process ends."""
    try:
        await asyncio.wait_for(leaving.wait(), LOOK_EVERY_S)
    except TimeoutError:
        return False
    return True
