"""A docstring stands by itself: it can be read without the name above it and without the docstring of another function.

It begins with a verb or with what the thing is: "Return the pod's request, or None if it asks only by ResourceClaims",
and not "As `requested_by`, of a pod that Carrel's extender places". Older docstrings are mended as their modules are
touched. The number of a folder may only fall: `python -m tools.ratchets` lowers it.
"""

from collections import Counter
from pathlib import Path

from tools.ratchets import leaning_docstrings

LEFT = {
    "admission": 0,
    "bookings": 2,
    "cli": 8,
    "cluster": 9,
    "dialects": 8,
    "jupyterhub": 0,
    "kubernetes": 10,
    "ledger": 9,
    "lifecycle": 7,
    "node": 0,
    "parsing": 0,
    "scheduling": 1,
    "simulation": 10,
}
"""Folder → docstrings of modules, classes and functions that begin with Of, By, As, The same, or Whose."""


def test_no_folder_gets_a_docstring_that_leans_on_another() -> None:
    found = leaning_docstrings()
    now = Counter(folder for folder, _ in found)

    too_many = [place for folder, place in found if now[folder] > LEFT.get(folder, 0)]
    assert not too_many, "one of these is new; begin it with a verb, or with what the thing is"
    assert not [folder for folder, row in LEFT.items() if now[folder] < row], "run `python -m tools.ratchets`"


def test_such_docstrings_are_found_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "gpus.py").write_text(
        '"""By node."""\n'
        "class Gpu:\n"
        '    """A GPU, as reported."""\n'
        "    async def holder(self):\n"
        '        """As `pod`, of a claim."""\n'
        "def bytes_of(gpu):\n"
        '    """Bypass the cache."""\n'
    )

    assert leaning_docstrings(tmp_path) == [
        ("ledger", "ledger/gpus.py:1: By node."),
        ("ledger", "ledger/gpus.py:5: As `pod`, of a claim."),
    ]
