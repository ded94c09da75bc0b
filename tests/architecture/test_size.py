"""No folder of `src/carrel` grows unless somebody has decided so.

Function by function the code was good, and as a whole it became too much to carry: features came with four lines for
each that went. So every folder has a row here with the lines of Python that it may have.

- **A folder has fewer lines:** `python -m tools.ratchets` lowers its row. The test asks for it when a row is more than
  100 lines above the folder, so that what was won is not lost again.
- **A folder needs more:** look first what the new code replaces. Then raise the row by hand, and write the reason
  behind it, in one line: `"node": 3_100,  # devices of a second maker`.
- **A folder is new, or gone:** its row comes and goes with it.
"""

from collections.abc import Mapping
from pathlib import Path

from tools.ratchets import SINGLE_FILES, lines_by_folder, lowered

LINES = {
    "admission": 2_270,  # a part of a GPU is a limit; no limits in MIG slices
    "bookings": 17_108,  # messages by five channels, chosen by each person, with quiet hours and buttons
    "cli": 8_469,  # doctor says where the memory of parts is limited; MIG slices by their number
    "cluster": 5_488,  # the record says whether limits of memory are required; GPUs that are divided anew
    "configuration": 1_327,  # how much of a GPU pods share, and whether that is a limit
    "demo": 1_843,  # begins with a history of use: people with habits, a stuck counter; MIG slices
    "dialects": 5_088,  # limits of memory; agents report what pods may share of a GPU; MIG slices
    "files beside the folders": 1_165,  # simulated drivers keep memory; MIG slices
    "http": 1_090,  # bodies that are nested too deeply are refused here, for all components
    "jupyterhub": 900,  # a page while a pod changes; a countdown while a GPU is given back; the zone of the person
    "kubernetes": 3_688,  # says why a watch is not open
    "ledger": 4_939,  # more than can be shared of a GPU is the GPU alone; limits need nodes that can; MIG slices
    "lifecycle": 5_415,  # when limits of memory begin; MIG slices
    "manifests": 74,
    "node": 4_006,  # what a driver keeps and limits of a GPU's memory; MIG slices
    "parsing": 504,  # simpler characters for terminals without UTF-8
    "resource_claims": 3_084,  # everything about ResourceClaims, from the components; MIG slices of NVIDIA's DRA driver
    "scheduling": 2_039,  # ids have types of their own
    "simulation": 2_639,  # MIG slices in snapshots
}
"""Folder → lines of Python at most, with its subfolders, and without generated stubs."""

SLACK = 100
"""A row may be so many lines too high: not every small change touches the table."""


def mistakes(rows: Mapping[str, int], lines: Mapping[str, int]) -> list[str]:
    """Say of each row that is wrong what to do."""
    found = []
    for folder in sorted({*rows, *lines}):
        row, now = rows.get(folder), lines.get(folder)
        if row is None:
            found.append(f"{folder} has no row: add it to LINES, with {now}")
        elif now is None:
            found.append(f"{folder} is not there any more: take its row out of LINES")
        elif now > row:
            found.append(
                f"{folder} has {now} lines, {now - row} more than its row: make it shorter, or raise the row and write "
                "the reason behind it"
            )
        elif row - now > SLACK:
            found.append(f"{folder} has {now} lines, {row - now} fewer than its row: run `python -m tools.ratchets`")
    return found


def test_no_folder_has_more_lines_than_its_row_and_no_row_is_far_too_high() -> None:
    assert mistakes(LINES, lines_by_folder()) == []


def test_every_wrong_row_is_named_with_what_to_do() -> None:
    rows = {"larger": 500, "close": 500, "smaller": 500, "gone": 500}
    lines = {"larger": 501, "close": 400, "smaller": 399, "new": 10}

    assert mistakes(rows, lines) == [
        "gone is not there any more: take its row out of LINES",
        "larger has 501 lines, 1 more than its row: make it shorter, or raise the row and write the reason behind it",
        "new has no row: add it to LINES, with 10",
        "smaller has 399 lines, 101 fewer than its row: run `python -m tools.ratchets`",
    ]


def test_rows_are_only_lowered_and_keep_their_reasons() -> None:
    table = '    "smaller": 1_500,  # a reason\n    "larger": 500,\n'

    assert lowered(table, {"smaller": 1399, "larger": 501}) == table.replace("1_500", "1_399")


def test_subfolders_count_and_generated_stubs_do_not(tmp_path: Path) -> None:
    for name, text in {
        "alone.py": "a\n",
        "node/agent.py": "a\nb\n",
        "node/kubelet/plugin.py": "a\n",
        "node/kubelet/api_pb2_grpc.py": "a\n",
        "node/notes.md": "a\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert lines_by_folder(tmp_path) == {SINGLE_FILES: 1, "node": 3}
