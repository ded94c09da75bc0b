"""What the fault sweeps have in common: replicas on transports that fail, all by one seed."""

from random import Random

from kubernetes_in_memory.faults import FaultPlan
from tests.kit.faults import Faulty
from tests.kit.lab import Lab

FAULTS = {
    "refuse": 0.1,
    "lose_answer": 0.1,
    "stale_list": 0.1,
    "drop_watch": 0.05,
    "double_event": 0.1,
    "delay_event": 0.2,
    "longest_delay_s": 0.002,
}


class FaultRun:
    """One run of a sweep. When it fails, `story` says what happened."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.seed = seed
        self.random = Random(seed)
        self.starts = 0
        self.story: list[str] = []

    def faulty_transport(self, crash_after_write: int, **faults: float) -> Faulty:
        """For a process that is started now. `faults` replace some of `FAULTS`."""
        self.starts += 1
        plan = FaultPlan(
            seed=self.seed * 1000 + self.starts,
            crash_after_write=crash_after_write,
            **{**FAULTS, **faults},  # type: ignore[arg-type] # each of them is a float
        )
        faulty = Faulty(self.lab.api, plan)
        self.story.append(f"--- start {self.starts}: {plan}")
        faulty.story = self.story
        return faulty
