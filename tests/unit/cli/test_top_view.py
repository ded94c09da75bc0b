"""What `carrel top` shows of the GPUs, in which order, and what fits."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from carrel.cli.top_gpus import TopGpu, TopPod, as_data, summary
from carrel.cli.top_view import Columns, Order, Parts, Shown, View, lines_of, selected
from carrel.cluster.activity_words import ActivityWords
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpu_activity import ActivityState, GpuActivity, UnknownWhy
from carrel.ledger.gpu_usage import NOTHING_KNOWN, GpuSample
from carrel.ledger.gpus import MiB

NOW = datetime(2026, 11, 16, 14, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ACTIVE = GpuActivity(ActivityState.ACTIVE, NOW)
IDLE = GpuActivity(ActivityState.IDLE, NOW - 28 * MINUTE)
LONG_IDLE = GpuActivity(ActivityState.IDLE, NOW - 600 * MINUTE)
SHARED = GpuActivity(ActivityState.UNKNOWN, why=UnknownWhy.SHARED)
WORDS = ActivityWords(UTC, NOW)


def pod(name: str, user: str, activity: GpuActivity, *, tier: str = "opportunistic", mib: int = 40960) -> TopPod:
    until = NOW + 600 * MINUTE if tier == "booked" else None
    return TopPod(name, user, tier, mib, until, activity)


def gpu(index: int, *pods: TopPod, latest: GpuSample = NOTHING_KNOWN, node: str = "dgx-1", remark: str = "") -> TopGpu:
    activity = pods[0].activity if pods else None
    model = "NVIDIA-A100-SXM4-80GB" if node == "dgx-1" else "Tesla-T4"
    uuid = GpuUuid(f"GPU-{node}-{index}")
    return TopGpu(uuid, NodeName(node), index, model, 81920, remark, latest, activity, pods)


TRAIN = pod("lab/train-7", "ada@lab.example", ACTIVE, tier="booked", mib=81920)
BUSY = gpu(0, TRAIN, latest=GpuSample(0.98, MiB(62464), 310.4, 64))
HOARD = gpu(1, pod("lab/hoard", "bob@lab.example", LONG_IDLE), latest=GpuSample(0.0, MiB(8090), 55.0, 38))
PARTS = (pod("lab/half", "cleo@lab.example", SHARED), pod("lab/half-2", "ada@lab.example", SHARED))
HALVES = gpu(2, *PARTS, latest=GpuSample(None, MiB(30000), None, None))
FREE = gpu(3, latest=GpuSample(0.0, MiB(0), 25.0, 32))
BROKEN = gpu(0, node="lab-2", remark="unhealthy: XID 79")
NOTEBOOK = gpu(1, pod("speech/notebook", "", IDLE), latest=GpuSample(0.2, MiB(1000), 70.0, 41), node="lab-2")
WIDE = """
NODE  GPU MODEL          UTIL 10 MIN     USED HELD POWER TEMP POD                       PERSON TIER          IDLE
dgx-1 0   A100-SXM4-80GB 98%       ▁▁▅██ 61G  80G  310W  64C  lab/train-7               ada    booked        no
dgx-1 1   A100-SXM4-80GB 0%              7.9G 40G  55W   38C  lab/hoard                 bob    opportunistic 04:30
dgx-1 2   A100-SXM4-80GB –               29G  40G  –     –    lab/half                  cleo   opportunistic ?
dgx-1 2   A100-SXM4-80GB                      40G             lab/half-2                ada    opportunistic ?
dgx-1 3   A100-SXM4-80GB 0%              0.0G –    25W   32C  free                      –      –             –
lab-2 0   Tesla-T4       –               –    –    –     –    nobody: unhealthy: XID 79 –      –             –
lab-2 1   Tesla-T4       20%             1.0G 40G  70W   41C  speech/notebook           –      opportunistic 14:02
"""
GPUS = [BUSY, HOARD, HALVES, FREE, BROKEN, NOTEBOOK]


def recent(uuid: GpuUuid) -> Parts:
    return [None] * 5 + [0.0, 0.1, 0.5, 0.99, 1.0] if uuid == BUSY.uuid else ()


def table(width: int | None, gpus: list[TopGpu] | None = None) -> list[str]:
    return Columns(WORDS, recent).table(lines_of(GPUS if gpus is None else gpus), width)


def test_a_wide_terminal_shows_everything() -> None:
    assert "\n".join(table(150)) == WIDE.strip()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal_and_the_gpu_is_always_named(width: int) -> None:
    lines = table(width)

    assert [line for line in lines if len(line) > width] == []
    assert [line.split()[:2] for line in lines[1:3]] == [["dgx-1", "0"], ["dgx-1", "1"]]


def test_eighty_columns_have_what_people_look_for() -> None:
    head, first, *_ = table(80)

    assert {"NODE", "GPU", "UTIL", "USED", "HELD", "POD", "PERSON", "TIER", "IDLE"} <= set(head.split())
    assert "10 MIN" in head
    assert {"98%", "61G", "80G", "lab/train-7", "ada", "booked", "no"} <= set(first.split())


def test_what_a_shared_gpu_measures_is_shown_once_and_never_for_each_pod() -> None:
    data = as_data([HALVES])[0]

    assert (data["used_mib"], data["utilisation_percent"], data["power_watts"]) == (30000, None, None)
    assert [set(each) for each in data["pods"]] == [
        {"pod", "user", "tier", "mib", "booked_until", "activity", "idle_since"}
    ] * 2
    assert [each["activity"] for each in data["pods"]] == ["unknown", "unknown"]


def test_names_of_others_cannot_rewrite_the_terminal() -> None:
    forged = gpu(0, pod("lab/x\x1b[2J", "eve\n\u202e@lab.example", ACTIVE))

    assert [line for line in table(200, [forged]) if not line.isprintable()] == []


def test_people_of_several_domains_keep_them() -> None:
    other = gpu(1, pod("lab/x", "ada@other.example", ACTIVE))

    assert "ada@lab.example" in table(200, [BUSY, other])[1]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        pytest.param(View(), GPUS, id="by node and number"),
        pytest.param(View(Order.UTILISATION), [BUSY, NOTEBOOK, HOARD, FREE, HALVES, BROKEN], id="unknown comes last"),
        pytest.param(View(Order.MEMORY), [BUSY, HALVES, HOARD, NOTEBOOK, FREE, BROKEN], id="by memory"),
        pytest.param(View(Order.POWER), [BUSY, NOTEBOOK, HOARD, FREE, HALVES, BROKEN], id="by power"),
        pytest.param(View(Order.TEMPERATURE), [BUSY, NOTEBOOK, HOARD, FREE, HALVES, BROKEN], id="by temperature"),
        pytest.param(View(Order.IDLE), [HOARD, NOTEBOOK, BUSY, HALVES, FREE, BROKEN], id="who is idle longest"),
        pytest.param(View(shown=Shown.HELD), [BUSY, HOARD, HALVES, NOTEBOOK], id="held"),
        pytest.param(View(shown=Shown.IDLE), [HOARD, NOTEBOOK], id="idle"),
        pytest.param(View(shown=Shown.FREE), [FREE, BROKEN], id="held by nobody"),
        pytest.param(View(words="ADA"), [BUSY, HALVES], id="a person, in any case"),
        pytest.param(View(words="t4 notebook"), [NOTEBOOK], id="several words"),
        pytest.param(View(words="nowhere"), [], id="words that nothing has"),
    ],
)
def test_gpus_are_sorted_and_filtered(view: View, expected: list[TopGpu]) -> None:
    assert selected(GPUS, view) == expected


def pressed(*keys: str) -> View:
    view = View()
    for key in keys:
        view = view.after(key, page=10)
    return view


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("u",), View(Order.UTILISATION)),
        (("down", "down", "up"), View(first=1)),
        (("up",), View()),
        (("page down", " ", "page up"), View(first=10)),
        (("end", "home"), View()),
        (("down", "i"), View(Order.IDLE)),
        (("a", "a"), View(shown=Shown.IDLE)),
        (("a", "a", "a", "a"), View()),
        (("/", "q", "u", "enter"), View(words="qu")),
        (("/", "q", "u", "backspace"), View(words="q", is_typing=True)),
        (("/", "q", "up"), View(words="q", is_typing=True)),
        (("/", "q", "escape"), View()),
        (("/", "x", "enter", "escape"), View()),
        (("/", *"x" * 100, "enter"), View(words="x" * 60)),
        (("x", "enter", "ü"), View()),
        (("q",), View(ends=True)),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_keys_change_the_view(keys: tuple[str, ...], expected: View) -> None:
    assert pressed(*keys) == expected


def test_the_last_page_ends_with_the_last_line() -> None:
    assert pressed("end").within(lines=25, page=10).first == 15
    assert pressed("end").within(lines=5, page=10).first == 0


def test_the_sums_count_each_gpu_once() -> None:
    assert summary(GPUS) == "6 GPUs of 2 nodes: 4 held (1 booked), 1 active, 2 idle, 1 unknown; 1 free"
    assert summary([]) == "0 GPUs of 0 nodes: 0 held (0 booked); 0 free"
    assert summary([replace(BUSY, pods=PARTS)]).startswith("1 GPU of 1 node: 1 held (0 booked)")
