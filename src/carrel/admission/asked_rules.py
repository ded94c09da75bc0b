"""Makes the API server ask about GPU pods, once this webhook can answer.

The chart installs that entry of the webhook configuration without rules, and an entry without rules asks about nothing.
Else every GPU pod of the cluster would be refused until the image of Carrel is there (`failurePolicy: Fail`). From the
first answer on the entry has rules and keeps them, also while no webhook runs. As no manifest names them, neither helm
nor GitOps takes them back; where somebody does, they are written again at once.
"""

import logging

from carrel import manifests
from carrel.kubernetes.cluster import Cluster, NotFound
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS

log = logging.getLogger(__name__)


async def write_rules(cluster: Cluster, configuration: str) -> None:
    """Into the entries that have none. All replicas write the same: who is late finds nothing to do."""
    rules = {each["name"]: each["rules"] for one in manifests.webhooks() for each in one["webhooks"]}
    try:
        found = await cluster.get(MUTATING_WEBHOOKS, configuration)
    except NotFound:
        return  # `certificate_renewal` says so
    bare = [each for each in found.get("webhooks") or () if not each.get("rules") and each["name"] in rules]
    if bare:
        for entry in bare:
            entry["rules"] = rules[entry["name"]]
        await cluster.update(MUTATING_WEBHOOKS, found)
        log.info("rules_written name=%s entries=%s", configuration, ",".join(each["name"] for each in bare))
