"""Tells an admin about hubs whose word Carrel does not believe, and about their users of whom no address is known.

Each pod is counted in a metric. The log has one line for each account and each user, with the option that is missing.
Anybody who may create pods can make up names, so only so many are remembered and logged; the metric counts on. The
booking service's admin page shows the same from the pods that exist.
"""

import logging

from carrel.admission.metrics import WebhookMetrics
from carrel.admission.pod_owner import PodOwner

log = logging.getLogger(__name__)

MOST_NAMES = 200
"""Of accounts, and of users, that are logged by one process."""


class HubReports:
    def __init__(self, metrics: WebhookMetrics) -> None:
        self._metrics = metrics
        self._accounts: set[str] = set()
        self._users: set[str] = set()

    def report(self, owner: PodOwner) -> None:
        if account := owner.unlisted_spawner:
            self._metrics.count_pod_of_unlisted_spawner()
            if _is_new(account, self._accounts):
                log.warning(
                    "unlisted_spawner account=%s why='it creates GPU pods for users of a hub; if it is your hub, start"
                    " carrel webhook and carrel booking with --spawners %s, else no booking covers these pods'",
                    account,
                    account,
                )
        if user := owner.unmatched_user:
            self._metrics.count_pod_of_unmatched_user()
            if _is_new(user, self._users):
                log.warning(
                    "hub_user_without_address user=%r why='bookings are made under addresses; set --username-domain,"
                    " or map the user in the file of --hub-users'",
                    user,
                )


def _is_new(name: str, known: set[str]) -> bool:
    if name in known or len(known) >= MOST_NAMES:
        return False
    known.add(name)
    return True
