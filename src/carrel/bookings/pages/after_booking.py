"""What somebody who has booked can do now: a pod to begin with, in the namespace and the words of their other pods; a
notebook; an entry in their calendar."""

from dataclasses import dataclass

from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.records import BookingRecord, State
from carrel.bookings.service import ServiceParts
from carrel.dialects.example_pod import BookedGpus, example_pod
from carrel.dialects.interface import PodRequest
from carrel.dialects.jupyter import is_of_a_hub
from carrel.kubernetes.objects.kinds import Pod


@dataclass(frozen=True, slots=True)
class WhatNow:
    manifest: str
    """Empty: the service has no cluster."""
    hub: str
    """Address of the hub; empty: none is known."""
    is_planned: bool


def what_now(service: ServiceParts, record: BookingRecord, email: str) -> WhatNow | None:
    """None: the booking is over."""
    booking, now = record.booking, service.queries.now()
    state = record.state(now)
    if state not in (State.PLANNED, State.ACTIVE):
        return None
    is_planned, hub = state is State.PLANNED, service.configuration.current.value.bookings.sign_in.hub.url
    view = service.cluster_view
    if view is None:
        return WhatNow("", hub, is_planned)
    last = _last_pod(view, email)
    asked = view.isolation.ask("page", last, view.state.pod_facts.asked, None) if last else None
    stock = service.queries.inventory.stock().get(booking.model)
    booked = BookedGpus(
        booking.model,
        booking.gpus,
        service.queries.rules.shares_per_gpu if booking.share else 1,
        stock.memory if stock else 0,
        booking.id if is_planned else "",
    )
    manifest = example_pod(
        booked,
        record.namespace or (last.metadata.namespace if last else ""),
        asked.dialect if isinstance(asked, PodRequest) else None,
        view.state.options.dialect_options.memory_unit,
    )
    return WhatNow(manifest, hub, is_planned)


def _last_pod(view: ClusterView, email: str) -> Pod | None:
    """The person's newest pod that no hub has made: in the hub's namespace, people may not create pods."""
    own = [pod for pod in view.pods_of(email) if not is_of_a_hub(pod)]
    return max(own, key=lambda pod: pod.metadata.creation_timestamp, default=None)
