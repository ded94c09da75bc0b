"""Metrics and probes of the agent: base units, and no user's name in any label."""

from collections.abc import Callable
from datetime import datetime
from functools import partial

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from carrel.ledger.gpus import Gpu
from carrel.node.interfaces import MachineState
from carrel.node.memory_offer_decision import OfferMode


class AgentMetrics:
    def __init__(self, is_registered: dict[str, Callable[[], bool]]) -> None:
        registry = self._registry = CollectorRegistry()
        self._cards = Gauge("carrel_node_cards", "GPUs of this node.", ["usable"], registry=registry)
        self._processes = Gauge(
            "carrel_node_card_processes", "Processes that compute on a GPU.", ["gpu"], registry=registry
        )
        self._mismatches = Gauge(
            "carrel_node_mismatches", "Pods and containers with other GPUs than promised.", registry=registry
        )
        self._reported = Gauge(
            "carrel_node_reported_timestamp_seconds", "When this node's GPUs were last reported.", registry=registry
        )
        self._ways = Gauge(
            "carrel_node_memory_resource",
            "1 for the way in which memory is offered (plugin or node).",
            ["way"],
            registry=registry,
        )
        registered = Gauge(
            "carrel_node_plugin_registered",
            "1 while the device plugin is registered with the kubelet.",
            ["resource"],
            registry=registry,
        )
        for resource, is_so in is_registered.items():
            registered.labels(resource).set_function(partial(_as_number, is_so))

    def update(self, state: MachineState, gpus: tuple[Gpu, ...], mismatches: int, reported_at: datetime | None) -> None:
        usable = sum(not gpu.unusable for gpu in gpus)
        self._cards.labels("true").set(usable)
        self._cards.labels("false").set(len(gpus) - usable)
        self._mismatches.set(mismatches)
        self._processes.clear()
        for gpu in gpus:
            if gpu.uuid in state.processes:
                self._processes.labels(str(gpu.index)).set(state.processes[gpu.uuid])
        if reported_at is not None:
            self._reported.set(reported_at.timestamp())

    def set_offer_mode(self, mode: OfferMode | None) -> None:
        for each in OfferMode:
            self._ways.labels(each.value).set(each is mode)

    def text(self) -> bytes:
        return generate_latest(self._registry)


def _as_number(is_so: Callable[[], bool]) -> float:
    return float(is_so())


def health_app(metrics: AgentMetrics, trouble: Callable[[], str]) -> Starlette:
    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        why = trouble()
        return PlainTextResponse(why or "ok", status_code=503 if why else 200)

    async def numbers(_: Request) -> Response:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    return Starlette(routes=[Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", numbers)])
