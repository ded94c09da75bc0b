"""A person who is removed may still have pods, which hold GPUs: whoever removes them is told which."""

from carrel.bookings.maintenance import HeldPod
from carrel.bookings.people import Person, Role
from carrel.bookings.removal import PersonHas
from carrel.ids import BookingId
from tests.integration.pages.visitor import a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, OTHER, Caller, Opened, made


async def test_pods_that_run_on_are_named_before_and_after(opened: Opened, ada: Caller) -> None:
    mine = await made(ada, days=3)
    opened.inventory.pods = (
        HeldPod("lab/loose", MEMBER),
        HeldPod("lab/train", MEMBER, BookingId(mine["id"])),
        HeldPod("lab/of-another", OTHER),
    )
    root, removal = Person("root@lab.org", roles=frozenset({Role.PLATFORM_ADMIN})), opened.service.removal

    seen, done = await removal.preview(MEMBER, root), await removal.remove(MEMBER, root, "left the lab")

    assert isinstance(seen, PersonHas) and isinstance(done, PersonHas)
    assert (seen.pods, seen.ends[0]) == (["lab/loose", "lab/train"], "1 booking")
    assert done.pods == seen.pods, "nothing was done to them"


async def test_the_page_says_which_pods_run_on(opened: Opened) -> None:
    opened.inventory.pods = (HeldPod("lab/loose", MEMBER), HeldPod("lab/of-another", OTHER))
    root = await a_visitor(opened, ADMIN, Role.PLATFORM_ADMIN)

    text = text_of(await root.get(f"/admin/people/{MEMBER}"))

    assert "1 pod of theirs holds a GPU and runs on without a booking" in text
    assert "lab/loose" in text and "lab/of-another" not in text
