"""`python -m tools.walk`: follows one gpushare pod through Carrel and counts how often its path leaves a folder.

The pod is admitted, filtered, ranked, bound, deleted and collected by the product's own objects, on the embedded API.
While each stage runs, every call is looked at. A call counts if caller and callee lie in different folders of
`src/carrel`; frames of other packages between them are skipped. What other tasks do at the same time, such as watches,
is not part of the pod's path and is not counted. Each pair of caller and callee counts once per stage, in three ways:

    pairs of modules      `scheduling.scheduler` → `ledger.placement`
    pairs of folders      `scheduling` → `ledger`
    between components    the same, if both folders run as a process of their own
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from carrel.kubernetes.objects.resources import PODS
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import a_lab
from tests.kit.reviews import ReviewedCluster, a_pod, review

GPU_MEM = {"aliyun.com/gpu-mem": "8138"}
COMPONENTS = ("admission", "bookings", "lifecycle", "node", "scheduling")
PASSES_ON = "carrel.kubernetes.isolation"
PACKAGE = "carrel"

Pair = tuple[str, str]


@dataclass
class Stage:
    name: str
    modules: set[Pair] = field(default_factory=set)
    """(caller, callee), in different folders."""

    @property
    def folders(self) -> set[Pair]:
        return {(folder(caller), folder(callee)) for caller, callee in self.modules}

    @property
    def components(self) -> set[Pair]:
        return {pair for pair in self.folders if pair[0] in COMPONENTS and pair[1] in COMPONENTS}


def folder(module: str) -> str:
    return module.split(".")[1]


@contextmanager
def traced(name: str, found: list[Stage]) -> Iterator[None]:
    """Looks at every call of this task until the block ends."""
    stage, task = Stage(name), asyncio.current_task()
    found.append(stage)

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or asyncio.current_task() is not task:
            return
        callee = _module(frame)
        caller = callee and _module(_ours(frame.f_back))
        if caller and folder(caller) != folder(callee):
            stage.modules.add((caller, callee))

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def _module(frame: FrameType | None) -> str:
    """Empty if it is not one of Carrel's."""
    name = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    return name if name.startswith(f"{PACKAGE}.") else ""


def _ours(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of Carrel's; None as soon as the tool itself is reached. `isolation` only passes calls on: the
    caller is whoever gave it the function."""
    while frame is not None and _module(frame) in ("", PASSES_ON):
        if frame.f_globals.get("__name__") == __name__:
            return None
        frame = frame.f_back
    return frame


async def walk() -> list[Stage]:
    found: list[Stage] = []
    webhook = await ReviewedCluster().handler()
    body = json.dumps(review(a_pod(GPU_MEM), "alice@lab.example")).encode()
    with traced("admission", found):
        await webhook.mutate(body)
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as carrel:
        pod = await carrel.sees(await lab.pod("train", limits=GPU_MEM, grace_seconds=0))
        with traced("filter", found):
            carrel.scheduler.filter(pod, ["n1", "n2"])
        with traced("prioritize", found):
            carrel.scheduler.rank(pod, ["n1", "n2"])
        with traced("bind", found):
            assert await carrel.scheduler.bind(pod, "n1") is None
        await eventually(lambda: (seen := carrel.pods.store.get("train", "lab")) and seen.spec.node_name)
        await lab.client.delete(PODS, "train", "lab")
        await eventually(lambda: carrel.pods.store.get("train", "lab") is None)
        with traced("collect", found):
            assert await carrel.collector.collect()
    return found


def table(stages: list[Stage]) -> str:
    lines = ["| stage | pairs of modules | pairs of folders | between components |", "| --- | --- | --- | --- |"]
    for stage in stages:
        between = ", ".join(f"{caller} → {callee}" for caller, callee in sorted(stage.components)) or "none"
        lines.append(f"| {stage.name} | {len(stage.modules)} | {len(stage.folders)} | {between} |")
    modules = {pair for stage in stages for pair in stage.modules}
    folders = {pair for stage in stages for pair in stage.folders}
    components = {pair for stage in stages for pair in stage.components}
    added = [sum(len(pairs) for pairs in each) for each in ([s.modules for s in stages], [s.folders for s in stages])]
    lines.append(f"| all stages added | {added[0]} | {added[1]} | {sum(len(s.components) for s in stages)} |")
    lines.append(f"| each pair once | {len(modules)} | {len(folders)} | {len(components)} |")
    return "\n".join(lines)


def main() -> None:
    stages = asyncio.run(walk())
    print(table(stages))
    for stage in stages:
        print(f"\n{stage.name}")
        for caller, callee in sorted(stage.folders):
            inside = [f"{a} → {b}" for a, b in sorted(stage.modules) if (folder(a), folder(b)) == (caller, callee)]
            print(f"  {caller} → {callee}: {len(inside)}")
            if "-v" in sys.argv:
                print(*(f"    {each}" for each in inside), sep="\n")


if __name__ == "__main__":
    main()
