"""A process that reads the machine's GPUs through NVML on command, and prints them.

look           prints the GPUs as JSON
sample         prints what they do now, by UUID
limits <GPU> <path>   prints how much of the GPU a control group may have
wait           prints `changed` when a GPU has reported an error
advance <s>    moves its clock on
"""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from carrel.ids import GpuUuid
from carrel.node.interfaces import ControlGroup
from carrel.node.nvidia import NvmlMachine
from tests.kit.gpus import N1


async def main(sysfs: Path, answer_s: float) -> None:
    passed = 0.0
    machine = NvmlMachine(N1, clock=lambda: passed, sysfs=sysfs, answer_s=answer_s)
    while line := (await asyncio.to_thread(sys.stdin.readline)).split():
        if line[0] == "look":
            state = asdict(await machine.read_state())
            for gpu in state["gpus"]:
                del gpu["may_be"]  # of slots only
            print(json.dumps(state), flush=True)
        elif line[0] == "sample":
            samples = await machine.sample()
            print(json.dumps({uuid: asdict(sample) for uuid, sample in samples.items()}), flush=True)
        elif line[0] == "limits":
            found = await machine.memory_limits([ControlGroup(GpuUuid(line[1]), line[2])])
            print(json.dumps(list(found.values())), flush=True)
        elif line[0] == "wait":
            await machine.wait_changed()
            print(json.dumps("changed"), flush=True)
        else:
            passed += float(line[1])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
