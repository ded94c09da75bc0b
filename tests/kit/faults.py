"""An API server with faults, as Carrel's client sees them: a lost answer is `OutcomeUnknown`."""

import asyncio
from collections.abc import Awaitable, Callable

from carrel.kubernetes.cluster import OutcomeUnknown
from kubernetes_in_memory import EmbeddedApi, faults
from kubernetes_in_memory.faults import FaultPlan


class Faulty(faults.Faulty):
    def __init__(
        self, api: EmbeddedApi, plan: FaultPlan, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        super().__init__(api, plan, sleep, answer_lost=lambda message: OutcomeUnknown(0, "Timeout", message))
