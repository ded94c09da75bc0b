"""What things are known by, each as a type of its own, so that mypy refuses the name of a node where a uid belongs.

At run time each is text. An object has its ids by being decoded; only text that comes from elsewhere (a path, an
annotation, an option) becomes an id by a call, where it is read.
"""

from typing import NewType

PodUid = NewType("PodUid", str)
ResourceClaimUid = NewType("ResourceClaimUid", str)
BookingId = NewType("BookingId", str)
"""As the booking service makes it, or whoever else makes bookings; also the name of the booking's object."""
HolderId = PodUid | ResourceClaimUid | BookingId
"""Who holds a part of a GPU: a pod or a ResourceClaim. A GPU may also be kept for a booking: for its next pod."""

GpuUuid = NewType("GpuUuid", str)
"""As the driver reports it, or what stands for it where nobody reports one (`ledger.gpus.place_name`)."""
NodeName = NewType("NodeName", str)
PersonId = NewType("PersonId", str)
"""By what bookings and pods name one person: an e-mail address or the name of a user, in lower case."""

NO_POD = PodUid("")
NO_BOOKING = BookingId("")
NO_GPU = GpuUuid("")
NO_NODE = NodeName("")
NO_PERSON = PersonId("")


def short_id(id: str) -> str:
    """Return the digits that people need to name a booking or a maintenance."""
    return id[:8]
