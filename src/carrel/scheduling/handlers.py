"""Answers kube-scheduler's calls: bytes in, a status and bytes out.

- What a scheduler could have sent is answered with 200, and a refusal is in the `Error` field: kube-scheduler shows it
  in the pod's Event; of any other status it shows only the number. This is so on gpushare's prefix too, where gpushare
  answers a failed bind with 500: the scheduler tries again in both cases, and this way people see why.
- `prioritize` has no such field, and a body that is no JSON was not sent by a scheduler: 400 with the reason.
- A node that does not fit is in `FailedNodes` with its reason; on gpushare's prefix after gpushare's own sentence.
- A pod whose request cannot be read (two dialects, an absurd quantity, a claim that does not exist) fails on all nodes.

Nothing is answered before the ledger is complete. A replica that stops finishes the binds that are under way. It takes
no new ones, except those of gangs, for which other members may wait, and still answers everything else.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial

import msgspec

from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.cluster.state import ClusterState
from carrel.dialects import gpushare
from carrel.dialects.interface import PodRequest
from carrel.http.post_routes import JsonReply
from carrel.ids import NO_NODE, NodeName
from carrel.kubernetes.cluster import ClusterError
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.filtering import FilterResult
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder
from carrel.parsing import Malformed
from carrel.scheduling import extender_calls
from carrel.scheduling.bind_check import BindCheck
from carrel.scheduling.extender_calls import BindArgs, NotJson, PodAndNodes, read_bind_args, read_pod_and_nodes
from carrel.scheduling.metrics import ExtenderMetrics
from carrel.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

REBUILDING = "the ledger is being rebuilt from the cluster; try again in a moment"
DEFECT = "Carrel made a mistake; its log says which. Nothing was decided; try again"
STOPPING = "this replica is stopping and takes no new binds; try again"


class ExtenderHandlers:
    def __init__(
        self,
        state: ClusterState,
        scheduler: Scheduler,
        bind_check: BindCheck,
        metrics: ExtenderMetrics,
    ) -> None:
        self._state = state
        self._scheduler = scheduler
        self._bind_check = bind_check
        self._metrics = metrics
        self._is_stopping = False
        self._binds = 0
        self._idle = asyncio.Event()
        self._idle.set()

    # --- filter ------------------------------------------------------------------------------------------------------

    def filter(self, body: bytes, *, for_gpushare: bool = False) -> JsonReply:
        start = time.perf_counter()
        try:
            asked = read_pod_and_nodes(body)
            if not self._state.informers.is_synced:
                return self._refuse("filter", "not_ready", extender_calls.filter_failed(REBUILDING))
            # gpushare names all nodes with room.
            found = self._scheduler.filter(asked.pod, asked.nodes, chooses=not for_gpushare)
            if isinstance(found, Refusal):
                return self._refuse("filter", "pod", extender_calls.filter_failed(found.reason))
            if not found.fitting and asked.nodes:
                self._metrics.refusals.labels("filter", "no_room").inc()
            reasons = self._reasons_of_the_dialect(asked, found) if for_gpushare and found.refused else found.refused
            return _reply(extender_calls.filter_result(asked.objects, tuple(found.fitting), reasons))
        except NotJson as error:
            return self._refuse("filter", "unreadable", extender_calls.filter_failed(str(error)), 400)
        except Malformed as malformed:
            return self._refuse("filter", "unreadable", extender_calls.filter_failed(str(malformed)))
        except Exception:
            log.exception("filter_broke")
            return self._refuse("filter", "defect", extender_calls.filter_failed(DEFECT))
        finally:
            self._metrics.filter_s.observe(time.perf_counter() - start)

    def _reasons_of_the_dialect(self, asked: PodAndNodes, found: FilterResult) -> Mapping[NodeName, str]:
        pod_request, refused = self._scheduler.asked(asked.pod), found.refused
        words = pod_request.dialect.filtered_out if isinstance(pod_request, PodRequest) else None
        if words is None:
            return refused
        entries = self._state.ledger.entries
        return {node: words(node, why, bool(entries(node))) for node, why in refused.items()}

    # --- prioritize --------------------------------------------------------------------------------------------------

    def prioritize(self, body: bytes) -> JsonReply:
        start = time.perf_counter()
        try:
            asked = read_pod_and_nodes(body)
            is_synced = self._state.informers.is_synced
            ranked = self._scheduler.rank(asked.pod, asked.nodes) if is_synced else dict.fromkeys(asked.nodes, False)
            return _reply(extender_calls.host_priorities(ranked))
        except (NotJson, Malformed) as error:
            return self._refuse("prioritize", "unreadable", {"Error": str(error)}, 400)
        except Exception:
            log.exception("prioritize_broke")
            return self._refuse("prioritize", "defect", {"Error": DEFECT}, 500)
        finally:
            self._metrics.prioritize_s.observe(time.perf_counter() - start)

    # --- bind --------------------------------------------------------------------------------------------------------

    async def bind(self, body: bytes) -> JsonReply:
        start = time.perf_counter()
        outcome = "refused"
        try:
            args = read_bind_args(body)
            kind, why = await self._bind(args)
            if not why:
                outcome = "bound"
                return _reply(extender_calls.BOUND)
            return self._refuse("bind", kind, extender_calls.bind_failed(why))
        except NotJson as error:
            return self._refuse("bind", "unreadable", extender_calls.bind_failed(str(error)), 400)
        except Malformed as malformed:
            return self._refuse("bind", "unreadable", extender_calls.bind_failed(str(malformed)))
        except Exception:
            log.exception("bind_broke")
            return self._refuse("bind", "defect", extender_calls.bind_failed(DEFECT))
        finally:
            self._metrics.bind_s.labels(outcome).observe(time.perf_counter() - start)

    async def _bind(self, args: BindArgs) -> tuple[str, str]:
        """Which kind of refusal, and why; both empty: bound."""
        if not self._state.informers.is_synced:
            return "not_ready", REBUILDING
        self._count_binds(1)
        is_handed_over = False
        try:
            pod = await self._bind_check.find_pod(args)
            if self._is_stopping and not (isinstance(pod, Refusal) or self._is_in_gang(pod)):
                return "not_ready", STOPPING
            refusal = pod if isinstance(pod, Refusal) else await self._bind_check.why_not(pod, args.node)
            if isinstance(pod, Pod) and refusal is None:
                is_handed_over = True
                refusal = await self._scheduler.bind(pod, args.node)
        except ClusterError as error:
            log.warning("bind_failed pod=%s/%s node=%s why=%s", args.namespace, args.pod, args.node, error)
            return "api", f"the API server: {error}"
        finally:
            self._count_binds(-1)
            if not is_handed_over:
                self._scheduler.bind_refused(Holder(args.uid, args.namespace, args.pod), args.node)
        if refusal is None:
            log.info("bound pod=%s/%s node=%s", args.namespace, args.pod, args.node)
            return "", ""
        why = refusal.reason
        log.info("bind_refused pod=%s/%s node=%s why=%s", args.namespace, args.pod, args.node, why)
        return "refused", why

    def _count_binds(self, more: int) -> None:
        self._binds += more
        self._metrics.binds.set(self._binds)
        if self._binds:
            self._idle.clear()
        else:
            self._idle.set()

    def _is_in_gang(self, pod: Pod) -> bool:
        pod_request = self._scheduler.asked(pod)
        return isinstance(pod_request, PodRequest) and pod_request.request.gang is not None

    # --- inspect, health ---------------------------------------------------------------------------------------------

    def inspect(self, node: NodeName = NO_NODE) -> JsonReply:
        """What gpushare's kubectl plugin asks for: one node, or all nodes with GPUs."""
        ledger = self._state.ledger
        if node and ledger.node(node) is None:
            return _reply(gpushare.inspection((), f"{node} has no GPU that Carrel knows of"), 404)
        only, unit = [node] if node else None, self._state.options.dialect_options.memory_unit
        shown = gpushare.inspected(ledger, unit, only, partial(shown_gpus, self._state.cluster_ledger))
        return _reply(gpushare.inspection(shown))

    def why_not_ready(self) -> str:
        """Empty: ready."""
        if self._is_stopping:
            return STOPPING
        return "" if self._state.informers.is_synced else REBUILDING

    def metrics_text(self) -> bytes:
        return self._metrics.text()

    # --- stopping ----------------------------------------------------------------------------------------------------

    async def wait_binds_finished(self) -> None:
        """The component is no longer ready. Returns when the binds under way are done; they may wait for a gang."""
        self._is_stopping = True
        log.info("stopping binds_under_way=%d", self._binds)
        await self._idle.wait()

    def _refuse(self, verb: str, kind: str, answer: object, status: int = 200) -> JsonReply:
        self._metrics.refusals.labels(verb, kind).inc()
        return _reply(answer, status)


def _reply(answer: object, status: int = 200) -> JsonReply:
    return JsonReply(status, msgspec.json.encode(answer))
