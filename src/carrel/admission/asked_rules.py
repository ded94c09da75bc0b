"""Makes the API server ask about GPU pods, once this webhook can answer.

The chart installs that entry of the webhook configuration without rules, and an entry without rules asks about nothing.
Else every GPU pod of the cluster would be refused until the image of Carrel is there (`failurePolicy: Fail`). From the
first answer on the entry has rules and keeps them, also while no webhook runs. As no manifest names them, neither helm
nor GitOps takes them back; where somebody does, they are written again at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from carrel import manifests
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Cluster, ClusterError, NotFound, Selection
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS
from carrel.kubernetes.reflector import Informers

log = logging.getLogger(__name__)

RETRY_S = 2.0
"""After a failure, and after another replica was faster."""

Rules = Mapping[str, Sequence[Mapping[str, Any]]]


async def keep_asked(client: Client, configuration: str, answers: asyncio.Event) -> None:
    """From when the webhook `answers` on. Certificates are trusted by then: none is served before."""
    await answers.wait()
    rules = {each["name"]: each["rules"] for one in manifests.webhooks() for each in one["webhooks"]}
    changed, informers = asyncio.Event(), Informers(client)
    informers.watch(MUTATING_WEBHOOKS, Selection(fields=f"metadata.name={configuration}")).on_change(
        lambda old, new: changed.set()
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(informers.run())
        while True:
            changed.clear()
            is_done = await _attempt(client, configuration, rules)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if is_done else RETRY_S):
                    await changed.wait()


async def _attempt(client: Cluster, configuration: str, rules: Rules) -> bool:
    try:
        await write_rules(client, configuration, rules)
    except NotFound:
        return True  # it is seen when it is created
    except ClusterError as error:
        log.warning("rules_not_written name=%s why=%r", configuration, str(error))
        return False
    return True


async def write_rules(client: Cluster, configuration: str, rules: Rules) -> None:
    """Into the entries that have none. All replicas write the same: who is late finds nothing to do."""
    found = await client.get(MUTATING_WEBHOOKS, configuration)
    bare = [each for each in found.get("webhooks") or () if not each.get("rules") and each["name"] in rules]
    if not bare:
        return
    for entry in bare:
        entry["rules"] = rules[entry["name"]]
    await client.update(MUTATING_WEBHOOKS, found)
    log.info("rules_written name=%s entries=%s", configuration, ",".join(each["name"] for each in bare))
