"""The cluster map and its live stream: the picture of a GPU fills when a pod starts.

The stream sends only what changed since the page was rendered or since the last event: the totals, and the pictures and
table rows of the changed nodes. If nodes were added or removed, if bookings began, ended or changed, or if another
process answers, it sends the whole map. Polling is cheap while nothing changes, because changes are counted.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from zlib import crc32

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.pages import cluster_map
from carrel.bookings.pages.cluster_map import (
    UNUSED,
    Closed,
    GpuOnMap,
    NodeOnMap,
    PodOf,
    PodOnMap,
    Totals,
    UseOf,
    UseOnMap,
)
from carrel.bookings.pages.layout import Handler, Page, PageRenderer
from carrel.bookings.people import Person
from carrel.bookings.records import StoreUnavailable
from carrel.bookings.sign_in.authenticator import CurrentPerson
from carrel.cluster.coverage.coverage_words import CoverageWords
from carrel.dialects.tier import person_of
from carrel.http.limits import DEFAULT_LIMITS
from carrel.http.problems import Problem
from carrel.ids import GpuUuid, HolderId, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.parsing.time import at

PER_PERSON = 4
"""A few windows. Browsers open six connections to one host, and the pages need some of them."""
SLOW_TO_END = 2
"""How many times as many connections as streams may be taken, while displaced streams end."""


class LiveStream:
    def __init__(self, person: str) -> None:
        self.person = person
        self.is_displaced = False


class LiveStreams:
    """Limits how many live streams are open: a few per person, and together a part of the server's connections.

    A stream takes a connection for minutes. One more than a person may have displaces the oldest of theirs; one more
    than all may have, the oldest of whoever has the most. So streams never take the connections that pages need. A
    stream that is displaced ends at its next poll, unless its reader is slow: until then it counts, and a person with
    too many of those gets no other.
    """

    def __init__(self, most: int | None = None) -> None:
        """`most`: of all people together. By default a quarter of the server's connections."""
        self._most = DEFAULT_LIMITS.within_open_files().connections // 4 if most is None else most
        self._open: dict[LiveStream, None] = {}  # the oldest first

    def require_room(self, person: str) -> None:
        """Raises `Problem` if too many displaced streams have not ended yet."""
        own = sum(stream.person == person for stream in self._open)
        if own >= PER_PERSON * SLOW_TO_END or len(self._open) >= max(1, self._most) * SLOW_TO_END:
            why = "Others that are open have to end first."
            problem = Problem(429, "too-many-streams", "Too many live maps are open", why, "close other windows")
            raise problem.with_headers({"retry-after": "60"})

    @contextlib.contextmanager
    def opened(self, person: str) -> Iterator[LiveStream]:
        """A stream that is open while the block runs. Others may be displaced for it."""
        stream = LiveStream(person)
        self._open[stream] = None
        try:
            self._displace(person)
            yield stream
        finally:
            del self._open[stream]

    def _displace(self, person: str) -> None:
        staying = [stream for stream in self._open if not stream.is_displaced]
        own = [stream for stream in staying if stream.person == person]
        if len(own) > PER_PERSON:
            own[0].is_displaced = True
        elif len(staying) > max(1, self._most):
            ((most, _),) = Counter(stream.person for stream in staying).most_common(1)
            next(stream for stream in staying if stream.person == most).is_displaced = True


POLL_S = 0.5
"""How soon a change is shown. People could not follow more frequent updates."""
KEEP_ALIVE_POLLS = 40
"""After so many polls without a change (20 s) a comment is sent. Otherwise proxies would close the connection."""
MAX_POLLS = 1200
"""After ten minutes the stream ends and the browser reconnects."""
PERSON_POLLS = 10
"""How often it is checked (5 s) that the person is still signed in, with the same roles."""
DISPLACED = "event: displaced\ndata: \n\n"
"""Tells the page to close its stream: otherwise the browser would reconnect, and displace the next one."""
MAX_NODES = 200
"""On one page. In larger clusters people filter nodes by name."""


@dataclass(frozen=True, slots=True)
class MapVersion:
    """Which state of the map a browser has. The browser sends it back unchanged."""

    process: str
    """Each process counts the changes of its ledger by itself."""
    moment: int
    nodes: int
    """A checksum of the names of the nodes, and of the maintenance that goes on."""
    bookings: int = 0
    """Counts what changes without a change of the ledger: which bookings run."""
    use: int = 0
    """Counts what changes without both: which GPUs are active or idle."""

    def __str__(self) -> str:
        return f"{self.process}-{self.moment}-{self.use}-{self.nodes}-{self.bookings}"

    def since(
        self, known: str, ledger: Ledger, used_since: Callable[[int], Collection[NodeName]]
    ) -> Collection[NodeName] | None:
        """The nodes that changed since the version `known`. None: the whole map must be sent. `used_since`: those whose
        use did since a version of it."""
        process, _, rest = known.partition("-")
        moment, _, rest = rest.partition("-")
        use, _, others = rest.partition("-")
        is_same_map = process == self.process and others == f"{self.nodes}-{self.bookings}"
        if not (is_same_map and all(each.isascii() and each.isdigit() and len(each) < 20 for each in (moment, use))):
            return None
        changed = ledger.changed_since(int(moment))
        return None if changed is None else {*changed, *used_since(int(use))}


class MapPage(Page):
    def __init__(self, renderer: PageRenderer) -> None:
        super().__init__(renderer)
        self._process = secrets.token_hex(4)
        self._streams = LiveStreams()
        self._counted: tuple[int, Totals] | None = None

    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /map": self.show,
            "GET /map/stream": self.stream,
            "GET /map/gpus/{uuid:path}": self.gpu,
        }

    async def show(self, request: Request, person: CurrentPerson) -> Response:
        cluster = self._service.cluster_view
        if cluster is None:
            return self._renderer.page(request, person, "no_map.html")
        wanted, uuid = _name_filter(request), GpuUuid(request.query_params.get("gpu", ""))
        names, closed = nodes_shown(cluster.ledger, wanted), await self._closed()
        return self._renderer.page(
            request,
            person,
            "map.html",
            nodes=self._nodes(cluster, person, names, closed),
            totals=self._totals(cluster),
            use=cluster.use_counts(),
            shown=self._gpu(cluster, person, uuid, closed) if uuid else None,
            draw=cluster_map.draw,
            mark=cluster_map.mark,
            map_version=str(self._version(cluster, names, closed)),
            wanted=wanted,
            hidden=sum(wanted in name for name in cluster.ledger.nodes) - len(names),
            is_read=cluster.state.informers.is_synced,
        )

    async def gpu(self, request: Request, person: CurrentPerson, uuid: GpuUuid) -> Response:
        """The part of the page about one GPU: who holds it."""
        cluster = self._service.cluster_view
        found = self._gpu(cluster, person, uuid, await self._closed()) if cluster else None
        return HTMLResponse(self._renderer.fragment("gpu.html", shown=found))

    async def stream(self, request: Request, person: CurrentPerson) -> Response:
        if self._service.cluster_view is None:
            raise Problem(
                404, "no-cluster", "There is no map", "This service runs without a cluster.", "open /timeline"
            )
        self._streams.require_room(person.email)
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        changes = self._changes(self._service.cluster_view, person, since, _name_filter(request))
        return StreamingResponse(
            self._while_allowed(changes, request, person), media_type="text/event-stream", headers=headers
        )

    async def _closed(self) -> Closed:
        """The maintenance that goes on now."""
        now = self._queries.now()
        windows = await self._queries.maintenance(now, now + timedelta(seconds=1))
        return Closed(windows, lambda instant: at(instant, self._queries.zone))

    def _version(self, cluster: ClusterView, names: Sequence[NodeName], closed: Closed) -> MapVersion:
        checksum = crc32("\n".join([*names, "", *(each.id for each in closed.windows)]).encode())
        seen = cluster.ledger.version, checksum, cluster.state.covered_pods.version, cluster.activities.version
        return MapVersion(self._process, *seen)

    def _pod_of(self, cluster: ClusterView) -> PodOf:
        return lambda uid: pod_on_map(cluster, uid, self._renderer.coverage_words)

    async def _while_allowed(self, changes: AsyncIterator[str], request: Request, person: Person) -> AsyncIterator[str]:
        """The events, one for each poll, until the stream is displaced, the person signs out or their roles change."""
        with self._streams.opened(person.email) as stream:
            polls = 0
            async for text in changes:
                if text:
                    yield text
                polls += 1
                if polls % PERSON_POLLS == 0 and not await self._service.authenticator.is_still(request, person):
                    return
                if await _wait_or_stop(self._service.stopping):
                    return
                if stream.is_displaced:
                    yield DISPLACED
                    return

    async def _changes(self, cluster: ClusterView, person: Person, known: str, wanted: str) -> AsyncIterator[str]:
        """What a browser with the version `known` has to be sent, at each poll; empty: nothing."""
        polled: object = None
        quiet, closed = 0, Closed()
        for poll in range(MAX_POLLS):
            text = ""
            if poll % PERSON_POLLS == 0:
                with contextlib.suppress(StoreUnavailable):  # what was read last is shown until it answers
                    closed = await self._closed()
            versions = (cluster.ledger.version, cluster.state.covered_pods.version, cluster.activities.version)
            seen = (*versions, closed.windows)
            if seen != polled:
                polled, quiet = seen, 0
                names = nodes_shown(cluster.ledger, wanted)
                version = self._version(cluster, names, closed)
                if known != str(version):
                    changed = version.since(known, cluster.ledger, cluster.activities.changed_since)
                    again = names if changed is None else [name for name in names if name in changed]
                    nodes = self._nodes(cluster, person, again, closed)
                    events = self._events(cluster, nodes, is_all=changed is None)
                    text, known = "".join(events) + f"id: {version}\n\n", str(version)
            else:
                quiet += 1
                if quiet % KEEP_ALIVE_POLLS == 0:
                    text = ": keep-alive\n\n"
            yield text

    def _use_of(self, cluster: ClusterView, person: Person) -> UseOf:
        return lambda entry: use_on_map(cluster, entry, person, self._renderer.zone)

    def _nodes(
        self, cluster: ClusterView, person: Person, names: Sequence[NodeName], closed: Closed
    ) -> list[NodeOnMap]:
        how = self._pod_of(cluster), closed, self._use_of(cluster, person)
        return [cluster_map.node_on_map(name, cluster.ledger.node(name), cluster.entries(name), *how) for name in names]

    def _gpu(self, cluster: ClusterView, person: Person, uuid: GpuUuid, closed: Closed) -> GpuOnMap | None:
        gpu = cluster.entry(uuid)
        how = self._pod_of(cluster), closed, self._use_of(cluster, person)
        return cluster_map.gpu_on_map(gpu, *how) if gpu else None

    def _totals(self, cluster: ClusterView) -> Totals:
        """Computed once per change of the ledger, for all streams."""
        moment = cluster.ledger.version
        if self._counted is None or self._counted[0] != moment:
            self._counted = (moment, cluster_map.totals(cluster.ledger, cluster.entries))
        return self._counted[1]

    def _events(self, cluster: ClusterView, nodes: Sequence[NodeOnMap], *, is_all: bool) -> Iterator[str]:
        fragment, draw = self._renderer.fragment, cluster_map.draw
        yield event("totals", fragment("totals.html", totals=self._totals(cluster), use=cluster.use_counts()))
        if is_all:
            yield event("nodes", fragment("nodes.html", nodes=nodes, draw=draw))
            yield event("rows", fragment("rows.html", nodes=nodes))
            return
        for node in nodes:
            yield event(f"node-{node.name}", fragment("node.html", node=node, draw=draw))
            yield event(f"rows-{node.name}", fragment("node_rows.html", node=node))


def _name_filter(request: Request) -> str:
    return request.query_params.get("node", "").strip().lower()[:100]


def nodes_shown(ledger: Ledger, wanted: str) -> list[NodeName]:
    """The nodes whose name contains `wanted`, up to the limit of a page."""
    return sorted(name for name in ledger.nodes if wanted in name)[:MAX_NODES]


def event(name: str, markup: str) -> str:
    lines = "".join(f"data: {line}\n" for line in markup.splitlines() if line.strip())
    return f"event: {name}\n{lines}\n"


async def _wait_or_stop(stopping: asyncio.Event) -> bool:
    """Waits for the next poll. True if the process stops."""
    try:
        await asyncio.wait_for(stopping.wait(), POLL_S)
    except TimeoutError:
        return False
    return True


def use_on_map(cluster: ClusterView, entry: GpuEntry, person: Person, zone: tzinfo) -> UseOnMap:
    activity, words = cluster.activity(entry, person), cluster.words(zone)
    if activity is None:
        return UNUSED
    of_holders = {uid: words.line(known) for uid in entry.shares if (known := cluster.activity(entry, person, uid))}
    since = words.short(activity.since) if activity.is_idle and activity.since else ""
    return UseOnMap(activity, words.line(activity), since, of_holders)


def pod_on_map(cluster: ClusterView, uid: HolderId, words: CoverageWords) -> PodOnMap:
    pod = cluster.pod(uid)
    if pod is None:
        return PodOnMap(None)

    def shown(pod: Pod) -> PodOnMap:
        told = cluster.coverage.of(pod)
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        return PodOnMap(told.tier, person_of(pod), words.for_others(told), name)

    return cluster.isolation.ask("map", pod, shown, PodOnMap(None, person_of(pod)))
