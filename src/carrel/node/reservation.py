"""Runs in a reservation pod, which holds one GPU for pods that share it.

It finds out which GPU the kubelet has allocated to its pod, writes that on the pod, and waits for the signal to end.
"""

import asyncio
import contextlib
import logging
import os
import signal

from carrel.command_errors import USAGE, command_failed
from carrel.dialects import kai_reservation
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Cluster, ClusterError, MergePatch
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from carrel.node.nvidia.visible_gpu import GpuSources, visible_gpu
from carrel.node.settings import ReservationSettings
from carrel.process import connect, log_to_stderr

log = logging.getLogger(__name__)

RETRY_S = 5.0


def run(settings: ReservationSettings) -> None:
    if not (settings.pod_name and settings.pod_namespace):
        raise command_failed(
            "No pod",
            "the program does not know the name of its pod",
            "POD_NAME and POD_NAMESPACE by the downward API",
            USAGE,
        )
    log_to_stderr(settings.log_level)
    asyncio.run(_until_signalled(connect(settings), settings))


async def _until_signalled(client: Client, settings: ReservationSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.aclosing(client):
        await hold_gpu(client, settings, GpuSources(os.environ), stop)
    log.info("stopped")


async def hold_gpu(cluster: Cluster, settings: ReservationSettings, sources: GpuSources, stop: asyncio.Event) -> None:
    """Reports the GPU as soon as it can; the pod keeps the GPU as long as it exists."""
    logged = ""
    while not stop.is_set():
        trouble = await _report(cluster, settings, sources)
        if not trouble:
            await stop.wait()
            return
        if trouble != logged:
            log.warning("gpu_not_reported: %s", trouble)
            logged = trouble
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await stop.wait()


async def _report(cluster: Cluster, settings: ReservationSettings, sources: GpuSources) -> str:
    """What failed; empty if nothing did."""
    found = visible_gpu(sources)
    if isinstance(found, Refusal):
        return found.reason
    patch = MergePatch({"metadata": {"annotations": kai_reservation.write_reserved(found)}})
    try:
        await cluster.patch(PODS, settings.pod_name, patch, settings.pod_namespace)
    except ClusterError as error:
        return str(error)
    log.info("gpu_reported gpu=%s pod=%s/%s", found, settings.pod_namespace, settings.pod_name)
    return ""
