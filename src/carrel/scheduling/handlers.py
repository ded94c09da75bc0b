"""Answers kube-scheduler's calls: bytes in, a status and bytes out.

Who is told what, and how
- What a scheduler could have sent is answered with 200, a no in the `Error` field: kube-scheduler shows those words in
  the pod's Event, and of any other status it shows only the number. This goes for gpushare's prefix too, where the peer
  answers a failed bind with 500: the scheduler tries again either way, and this way people see why.
- `prioritize` has no such field, and what is no JSON was sent by nobody we know: 400 with a sentence.
- A node that will not do is in `FailedNodes` with its reason; on gpushare's prefix behind the peer's own sentence.
- A pod that cannot be understood (two dialects, an absurd quantity, a claim that does not exist) fails as a whole.

Nothing is answered before the ledger is complete. Who leaves finishes the binds that are under way, takes no new ones
but those of gangs, for which others may be waiting, and still answers everything else.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from carrel.dialects import gpushare, gpushare_inspect
from carrel.dialects.interface import PodRequest
from carrel.dialects.options import Unit
from carrel.kubernetes.cluster import ClusterError
from carrel.kubernetes.objects.shapes import Pod
from carrel.ledger.filtering import FilterResult
from carrel.ledger.ledger import Ledger
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed
from carrel.scheduling import extender_calls
from carrel.scheduling.extender_calls import Binding
from carrel.scheduling.metrics import Metrics
from carrel.scheduling.pod_lookup import PodLookup
from carrel.scheduling.requests import Asked, NotJson, read_binding, read_question
from carrel.scheduling.responses import write_filtered
from carrel.scheduling.scheduler import Scheduler, Understand

log = logging.getLogger(__name__)

REBUILDING = "the ledger is being rebuilt from the cluster; try again in a moment"
DEFECT = "Carrel made a mistake; its log says which. Nothing was decided; try again"
LEAVING = "this replica is stopping and takes no new binds; try again"


class Reply(NamedTuple):
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class ExtenderContext:
    """Who does the work behind the desk."""

    scheduler: Scheduler
    understand: Understand
    find_pod: PodLookup
    ledger: Ledger
    metrics: Metrics
    is_synced: Callable[[], bool]
    unit: Unit = Unit.MIB


class ExtenderHandlers:
    def __init__(self, context: ExtenderContext) -> None:
        self._context = context
        self._metrics = context.metrics
        self._is_leaving = False
        self._binds = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # --- filter ------------------------------------------------------------------------------------------------------

    def filter(self, body: bytes, *, for_gpushare: bool = False) -> Reply:
        start = time.perf_counter()
        try:
            return self._filter(body, for_gpushare)
        except NotJson as error:
            return self._no("filter", "unreadable", extender_calls.filter_failed(str(error)), 400)
        except Malformed as malformed:
            return self._no("filter", "unreadable", extender_calls.filter_failed(str(malformed)))
        except Exception:
            log.exception("filter_broke")
            return self._no("filter", "defect", extender_calls.filter_failed(DEFECT))
        finally:
            self._metrics.filter_s.observe(time.perf_counter() - start)

    def _filter(self, body: bytes, for_gpushare: bool) -> Reply:
        asked = read_question(body)
        if not self._context.is_synced():
            return self._no("filter", "not_ready", extender_calls.filter_failed(REBUILDING))
        found = self._context.scheduler.filter(asked.pod, asked.nodes)
        if isinstance(found, Refusal):
            return self._no("filter", "pod", extender_calls.filter_failed(found.reason))
        if not found.fitting and asked.nodes:
            self._metrics.refusals.labels("filter", "no_room").inc()
        if for_gpushare and found.refused:
            return _reply(extender_calls.filtered(asked.objects, found.fitting, self._in_the_peers_words(asked, found)))
        return Reply(200, write_filtered(found, asked.objects))

    def _in_the_peers_words(self, asked: Asked, found: FilterResult) -> Mapping[str, str]:
        ask, refused = self._context.understand(asked.pod), found.why_not()
        words = ask.dialect.filtered_out if isinstance(ask, PodRequest) else None
        if words is None:
            return refused
        cards = self._context.ledger.cards
        return {node: words(node, why, bool(cards(node))) for node, why in refused.items()}

    # --- prioritize --------------------------------------------------------------------------------------------------

    def prioritize(self, body: bytes) -> Reply:
        start = time.perf_counter()
        try:
            asked = read_question(body)
            is_ours = self._context.is_synced() and isinstance(self._context.understand(asked.pod), PodRequest)
            # Of a pod that is not ours all nodes are equal: the scheduler's other reasons decide.
            scores = (
                extender_calls.scores(self._context.scheduler.rank(asked.pod, asked.nodes))
                if is_ours
                else dict.fromkeys(asked.nodes, 0)
            )
            return _reply(extender_calls.prioritized(scores))
        except (NotJson, Malformed) as error:
            return self._no("prioritize", "unreadable", {"Error": str(error)}, 400)
        finally:
            self._metrics.prioritize_s.observe(time.perf_counter() - start)

    # --- bind --------------------------------------------------------------------------------------------------------

    async def bind(self, body: bytes) -> Reply:
        start = time.perf_counter()
        outcome = "refused"
        try:
            binding = read_binding(body)
            kind, why = await self._bind(binding)
            if not why:
                outcome = "bound"
                return _reply(extender_calls.bound())
            return self._no("bind", kind, extender_calls.bound(why))
        except NotJson as error:
            return self._no("bind", "unreadable", extender_calls.bound(str(error)), 400)
        except Malformed as malformed:
            return self._no("bind", "unreadable", extender_calls.bound(str(malformed)))
        except Exception:
            log.exception("bind_broke")
            return self._no("bind", "defect", extender_calls.bound(DEFECT))
        finally:
            self._metrics.bind_s.labels(outcome).observe(time.perf_counter() - start)

    async def _bind(self, binding: Binding) -> tuple[str, str]:
        """Which kind of no, and why; both empty: bound."""
        if not self._context.is_synced():
            return "not_ready", REBUILDING
        self._count_binds(1)
        try:
            pod = await self._context.find_pod(binding)
            if self._is_leaving and not (isinstance(pod, Refusal) or self._is_in_a_gang(pod)):
                return "not_ready", LEAVING
            refusal = pod if isinstance(pod, Refusal) else await self._context.scheduler.bind(pod, binding.node)
        except ClusterError as error:
            log.warning("bind_failed pod=%s/%s node=%s why=%s", binding.namespace, binding.pod, binding.node, error)
            return "api", f"the API server: {error}"
        finally:
            self._count_binds(-1)
        if refusal is None:
            log.info("bound pod=%s/%s node=%s", binding.namespace, binding.pod, binding.node)
            return "", ""
        why = refusal.reason
        log.info("bind_refused pod=%s/%s node=%s why=%s", binding.namespace, binding.pod, binding.node, why)
        return "refused", why

    def _count_binds(self, more: int) -> None:
        self._binds += more
        self._metrics.binds.set(self._binds)
        if self._binds:
            self._idle.clear()
        else:
            self._idle.set()

    def _is_in_a_gang(self, pod: Pod) -> bool:
        ask = self._context.understand(pod)
        return isinstance(ask, PodRequest) and ask.request.gang is not None

    # --- looking -----------------------------------------------------------------------------------------------------

    def inspect(self, node: str = "") -> Reply:
        """What gpushare's kubectl plugin asks for: of one node or of all that have cards."""
        ledger = self._context.ledger
        if node and ledger.node(node) is None:
            return _reply(gpushare.inspection((), f"{node} has no GPU that Carrel knows of"), 404)
        return _reply(
            gpushare.inspection(gpushare_inspect.inspected(ledger, self._context.unit, [node] if node else None))
        )

    def why_not_ready(self) -> str:
        """Empty: ready."""
        if self._is_leaving:
            return LEAVING
        return "" if self._context.is_synced() else REBUILDING

    def measured(self) -> bytes:
        return self._metrics.text()

    # --- leaving -----------------------------------------------------------------------------------------------------

    async def wait_left(self) -> None:
        """No longer ready from here on; returns when the binds under way are done. They may wait for a gang."""
        self._is_leaving = True
        log.info("leaving binds_under_way=%d", self._binds)
        await self._idle.wait()

    def _no(self, verb: str, kind: str, answer: object, status: int = 200) -> Reply:
        self._metrics.refusals.labels(verb, kind).inc()
        return _reply(answer, status)


def _reply(answer: object, status: int = 200) -> Reply:
    return Reply(status, msgspec.json.encode(answer))
