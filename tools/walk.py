"""`python -m tools.walk`: how much of Carrel runs for what one pod needs, stage by stage.

Pods go through the product's own objects, on the embedded API, with the default settings. A stage begins with the bytes
of a call, or with a change in the cluster, and ends with the answer. Printed are the distinct functions of `src/carrel`
that run, and the distinct files that they are in: so much has somebody to read who asks how the stage works. Beside
them are the goals.

- Comprehensions, generator expressions and lambdas are part of the function around them and do not count. Everything
  else does: methods, properties, `__init__`, functions inside functions. What `dataclass` generates is in no file.
- Of a call, what other tasks do meanwhile is left out, such as watches. Of the last two stages, which go through the
  cluster, it is a part. Of the controller's tasks, those run that the stage needs.
- A function whose result is kept from an earlier stage does not run, and does not count.

`python -m tools.walk filter` also prints the functions of that stage, and `python -m tools.walk parts` of how many
functions the parts of a revocation consist.
"""

import asyncio
import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import carrel
from carrel.dialects.gpuclaim import Remarks
from carrel.http.post_routes import JsonReply
from carrel.kubernetes.cluster import Json
from carrel.kubernetes.objects.resources import PODS
from carrel.lifecycle.assembly import tier_parts_on
from carrel.lifecycle.freeing.collection import FreedShare
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from carrel.lifecycle.tier_options import TierOptions
from carrel.node.comparison import ComparisonResult
from carrel.node.report import Report, Reporter
from carrel.scheduling.assembly import handlers_on
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Replica, a_lab
from tests.kit.reviews import ReviewedCluster, a_pod, review
from tests.kit.tiers import an_opportunistic_pod, an_unschedulable_booked_pod, catch_up, end_deleted

GPU_MEM = {"aliyun.com/gpu-mem": "8138"}
PACKAGE = Path(str(carrel.__file__)).parent
WATCHES = "watches"
"""The part of a stage that other tasks do."""
ROUNDS = 10
"""Of the controller, until a booked pod must be bound."""

GOALS = {
    "admission": (70, 18),
    "filter": (80, 20),
    "bind": (110, 28),
    "collect": (60, 15),
    "revocation": (300, 55),
    "report": (180, 40),
}
"""Stage → at most so many functions, and files."""


class Stage:
    def __init__(self, name: str, about: str, has_watches: bool = False) -> None:
        self.name = name
        self.about = about
        self.has_watches = has_watches
        """Whether what runs in other tasks is a part of the stage."""
        self.parts: defaultdict[str, set[CodeType]] = defaultdict(set)
        """Part → the functions that run in it."""
        self.part = name
        """What the caller does now."""
        self._counts_caller = True

    @property
    def functions(self) -> set[CodeType]:
        return set().union(*self.parts.values())

    @property
    def files(self) -> set[Path]:
        return {Path(code.co_filename).relative_to(PACKAGE) for code in self.functions}

    @contextmanager
    def running(self) -> Iterator["Stage"]:
        """Count what runs until the block ends."""
        caller = asyncio.current_task()

        def look(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and _is_function_of_carrel(frame.f_code):
                is_caller = asyncio.current_task() is caller
                if self._counts_caller if is_caller else self.has_watches:
                    self.parts[self.part if is_caller else WATCHES].add(frame.f_code)

        sys.setprofile(look)
        try:
            yield self
        finally:
            sys.setprofile(None)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """In this block the caller stands for kube-scheduler or the kubelets, or only waits: its calls do not count."""
        self._counts_caller = False
        try:
            yield
        finally:
            self._counts_caller = True


def _is_function_of_carrel(code: CodeType) -> bool:
    """Bodies of modules and classes, which run when something is imported, are no functions."""
    is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    return bool(is_function) and PACKAGE in Path(code.co_filename).parents


async def walk() -> list[Stage]:
    return [await _admission(), *await _one_pod(), await _revocation(), await _report()]


async def _admission() -> Stage:
    webhook = await ReviewedCluster().handler()
    body = json.dumps(review(a_pod(GPU_MEM), "alice@lab.example")).encode()
    with Stage("admission", "a gpushare pod, from the review to its answer").running() as stage:
        answer = await webhook.mutate(body)
    assert answer.status == 200
    return stage


async def _one_pod() -> list[Stage]:
    """From filter until the pod's GPU is free again."""
    async with a_lab([a_node("n1"), a_node("n2")]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits=GPU_MEM, grace_seconds=0)
        await replica.sees(pod)
        extender = handlers_on(replica, replica.scheduler)
        with Stage("filter", "the pod's nodes, as by default: one is chosen").running() as filtered:
            (node,) = _nodes(extender.filter(_asked(pod, "n1", "n2")))
        with Stage("prioritize", "the pod's nodes, where kube-scheduler chooses").running() as ranked:
            extender.prioritize(_asked(pod, "n1", "n2"))
        with Stage("bind", "the pod on that node").running() as bound:
            answer = await extender.bind(_binding(pod, node))
        assert json.loads(answer.body) == {"Error": ""}
        await eventually(lambda: (seen := replica.pods.store.get("train", "lab")) and seen.spec.node_name)
        await lab.client.delete(PODS, "train", "lab")
        await eventually(lambda: replica.pods.store.get("train", "lab") is None)
        with Stage("collect", "the GPU of the pod, which is gone").running() as collected:
            assert await _collect(replica, pod)
    return [filtered, ranked, bound, collected]


async def _revocation() -> Stage:
    """Rounds of the controller, until the extender has bound the booked pod."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        victim = await an_opportunistic_pod(lab, replica, "train")
        pod = await an_unschedulable_booked_pod(lab, "urgent")
        extender, revocation = handlers_on(replica, replica.scheduler), _Revocation(replica)
        about = "from a booked pod without room until it is bound"
        with Stage("revocation", about, has_watches=True).running() as stage:
            for _ in range(ROUNDS):
                with stage.outside():
                    await catch_up(lab, replica)
                await revocation.round(stage)
                stage.part = "collection"
                await _collect(replica, victim)
                with stage.outside():
                    await catch_up(lab, replica)
                stage.part = "filter"
                if nodes := _nodes(extender.filter(_asked(pod, "n1"))):
                    stage.part = "bind"
                    answer = await extender.bind(_binding(pod, nodes[0]))
                    assert json.loads(answer.body) == {"Error": ""}
                    return stage
                with stage.outside():
                    await end_deleted(lab)
    raise AssertionError(f"the booked pod is not bound after {ROUNDS} rounds")


class _Revocation:
    """The tasks of the controller that a revocation needs: the choice and the hand-overs. Others run beside them, each
    by itself (warnings, corrections, long waits, slow endings), and change nothing about these pods."""

    def __init__(self, replica: Replica) -> None:
        self._parts = tier_parts_on(replica, TierOptions(frozenset({"gpu-scheduler"})))
        self._begun: set[str] = set()

    async def round(self, stage: Stage) -> None:
        stage.part = "choice"
        self._begun.update(await self._parts.revoker.revoke_for_next())
        stage.part = "hand-over"
        for name in tuple(self._begun):
            result: timedelta | HandOverResult = timedelta()
            while result == timedelta():
                result = await self._parts.hand_overs.advance(name)
            if isinstance(result, HandOverResult):
                self._begun.remove(name)


async def _collect(replica: Replica, pod: Json) -> list[FreedShare]:
    """The controller looks at the Leases of a pod when it is gone."""
    leases = replica.cluster_ledger.leases_of(pod["metadata"]["uid"])
    return [freed for lease in leases for freed in await replica.collector.collect_lease(lease.name)]


async def _report() -> Stage:
    async with a_lab([]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits=GPU_MEM)
        await replica.sees(pod)
        extender, reporter = handlers_on(replica, replica.scheduler), Reporter(lab.client, lab.clock)
        report = Report(a_node("n1"), ComparisonResult({}), lab.clock.now, Remarks())
        about = "from a new node's GPUs until a filter names it"
        with Stage("report", about, has_watches=True).running() as stage:
            await reporter.report(report)
            with stage.outside():
                await eventually(lambda: "n1" in replica.ledger.nodes)
            assert _nodes(extender.filter(_asked(pod, "n1"))) == ["n1"]
    return stage


def _asked(pod: Json, *nodes: str) -> bytes:
    return json.dumps({"Pod": pod, "NodeNames": nodes}).encode()


def _binding(pod: Json, node: str) -> bytes:
    metadata = pod["metadata"]
    names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
    return json.dumps({**names, "Node": node}).encode()


def _nodes(answer: JsonReply) -> list[str]:
    found: list[str] = json.loads(answer.body)["NodeNames"]
    return found


def table(stages: list[Stage]) -> str:
    lines = ["| stage | about | functions | goal | files | goal |", "|---|---|---|---|---|---|"]
    for stage in stages:
        functions, files = (f"≤ {goal}" for goal in GOALS[stage.name]) if stage.name in GOALS else ("–", "–")
        figures = (len(stage.functions), functions, len(stage.files), files)
        lines.append(f"| {stage.name} | {stage.about} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


def listing(stage: Stage) -> str:
    by_file = defaultdict(list)
    for code in sorted(stage.functions, key=lambda code: code.co_firstlineno):
        by_file[Path(code.co_filename).relative_to(PACKAGE).as_posix()].append(code.co_qualname)
    return "\n".join(f"{file}: {', '.join(names)}" for file, names in sorted(by_file.items()))


def parts_of(stage: Stage) -> str:
    lines = ["| part | functions | only there |", "|---|---|---|"]
    for part, functions in stage.parts.items():
        others = set[CodeType]().union(*(each for name, each in stage.parts.items() if name != part))
        lines.append(f"| {part} | {len(functions)} | {len(functions - others)} |")
    return "\n".join(lines)


def main() -> None:
    stages = asyncio.run(walk())
    print(table(stages))
    if "parts" in sys.argv[1:]:
        print(f"\n{parts_of(next(stage for stage in stages if stage.name == 'revocation'))}")
    for stage in stages:
        if stage.name in sys.argv[1:]:
            print(f"\n{stage.name}\n{listing(stage)}")


if __name__ == "__main__":
    main()
