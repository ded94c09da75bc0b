"""`carrel_profiles`: the choices of the spawn page: the person's booking, what is free, and no GPU.

Whether a booking covers the pod is Carrel's decision when the pod is created; a choice only says how many GPUs of which
model are asked for. So the same choice keeps its name whether a booking is running or not, and a hub that restarts a
server with the choice of last month finds it. KubeSpawner merges what a choice says with what the hub's admin has set
for all servers: "No GPU" must say 0.

The words of the spawn page are here too. Whatever others wrote is escaped: KubeSpawner does
not.
"""

import html
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from carrel.dialects.carrel import GPU_MODEL
from carrel.dialects.nvidia import GPU
from carrel.jupyterhub.startable import StartableAnswer, StartableBooking

AWAY = "Carrel's booking service does not answer. Bookings and free GPUs are not shown; you can still start."


def amount(gpus: int, model: str) -> str:
    """Return `2 RTX A6000`: a model has the name that the booking pages show."""
    return f"{gpus} {model.removeprefix('NVIDIA-').replace('-', ' ') or ('GPU' if gpus == 1 else 'GPUs')}"


def notices_html(startable: StartableAnswer | None) -> str:
    """What stands above the choices."""
    lines = [*(html.escape(each) for each in startable.notices)] if startable else [AWAY]
    if startable is not None:
        lines += [
            html.escape(f"Your booking of {amount(each.gpus, each.model)} starts {startable.local(each.start)}.")
            for each in startable.bookings
            if not each.runs
        ]
        if startable.book_url.startswith(("https://", "http://")):
            lines.append(f'<a href="{html.escape(startable.book_url)}" target="_blank" rel="noopener">Book a GPU …</a>')
    return "".join(f'<p class="carrel-notice">{line}</p>' for line in lines)


def next_free_words(startable: StartableAnswer | None) -> list[str]:
    """When GPUs of the models will be free that are all in use now."""
    return [
        f"{amount(1, each.model)} will be free {startable.local(each.next_free)}"
        for each in (startable.free if startable else ())
        if startable is not None and not each.gpus and each.next_free is not None
    ]


Profile = dict[str, Any]

ANY_GPU, NO_GPU = "gpu-any", "no-gpu"
OF_CARREL = re.compile(r"gpu-.+-([1-9]\d{0,2})")
"""The slug of a choice with a model and a number."""
MAY_BE_TAKEN_BACK = "It may be taken back when somebody who booked needs it; your notebook then continues on CPU."
OR_CPU = "If none is free, your notebook waits a moment, and then runs on CPU."
OR_WAIT = "If none is free, your notebook waits until one is."


def carrel_profiles(more: Sequence[Profile] = ()) -> Callable[[Any], Awaitable[list[Profile]]]:
    """For `c.KubeSpawner.profile_list`. `more`: further profiles of the hub's admin, shown at the end."""

    async def profiles(spawner: Any) -> list[Profile]:
        startable = await spawner.startable()
        listed = [*profiles_for(startable), *more]
        chosen = (spawner.user_options or {}).get("profile", "")
        is_starting = spawner.pending == "spawn"
        is_listed = any(each.get("slug") == chosen for each in listed)
        return [*listed, *outdated_profiles(chosen, startable)] if is_starting and not is_listed else listed

    return profiles


def profiles_for(startable: StartableAnswer | None) -> list[Profile]:
    """In the order of the page. Chosen beforehand is the booking, else no GPU: GPUs are scarce."""
    running = [each for each in startable.bookings if each.runs and each.left] if startable else []
    found = [profile for booking in running for profile in _of_booking(booking, startable)] if startable else []
    slugs = {each["slug"] for each in found}
    found += [each for each in _of_free_gpus(startable) if each["slug"] not in slugs]
    if not any(each.gpus for each in (startable.free if startable else ())):
        found.append(_any_gpu(startable, next_free_words(startable)))
    found.append(_profile(NO_GPU, "No GPU", "Your notebook runs on CPU.", 0, ""))
    found[0 if running else -1]["default"] = True
    return found


def _of_booking(booking: StartableBooking, startable: StartableAnswer) -> Iterator[Profile]:
    whose = f"Booking of {booking.group}" if booking.group else "Your booking"
    for gpus in sorted({1, booking.left}, reverse=True):
        title = f"{whose}: {amount(gpus, booking.model)} until {startable.local(booking.end)}"
        used = (
            f"{booking.used} of {booking.gpus} are in use." if booking.used else "Nobody can take it away until then."
        )
        text = f"Your notebook may have to wait: {booking.why_short}." if booking.why_short else used
        yield _profile(_slug(booking.model, gpus), title, text, gpus, booking.model)


def _of_free_gpus(startable: StartableAnswer | None) -> Iterator[Profile]:
    for free in startable.free if startable else ():
        if free.gpus:
            title = f"Free now: {amount(free.gpus, free.model)} (may be taken back)"
            yield _profile(_slug(free.model, 1), title, f"You get one. {MAY_BE_TAKEN_BACK}", 1, free.model)


def _any_gpu(startable: StartableAnswer | None, when: Sequence[str]) -> Profile:
    if_none = OR_WAIT if startable and startable.waits_when_full else OR_CPU
    text = f"{if_none} {MAY_BE_TAKEN_BACK}"
    return _profile(ANY_GPU, "A GPU if one is free", ". ".join([*when, text]), 1, "")


def outdated_profiles(chosen: str, startable: StartableAnswer | None) -> Iterator[Profile]:
    """A choice that was possible when the person made it: the booking is over, or the last free GPU was taken since."""
    known = (
        {each.model for each in startable.bookings} | {each.model for each in startable.free} if startable else set()
    )
    if found := OF_CARREL.fullmatch(chosen):
        gpus = int(found[1])
        model = next((each for each in sorted(known) if _slug(each, gpus) == chosen), "")
        yield _profile(chosen, "A GPU if one is free", MAY_BE_TAKEN_BACK, gpus if model else 1, model)
    elif chosen == ANY_GPU:
        yield _any_gpu(startable, [])


def _slug(model: str, gpus: int) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"gpu-{name or 'of-any-model'}-{gpus}"


def _profile(slug: str, title: str, description: str, gpus: int, model: str) -> Profile:
    return {
        "slug": slug,
        "display_name": html.escape(title),
        "description": html.escape(description),
        "kubespawner_override": {
            "extra_resource_limits": {GPU: str(gpus)},
            "extra_annotations": {GPU_MODEL: model or None},  # None takes it away
        },
    }
