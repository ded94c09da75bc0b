"""Device plugins for MIG slices: one for each profile that the node has had since the agent started.

An admin may divide GPUs anew while the agent runs. A profile that is there no more keeps its plugin, without devices:
the kubelet forgets a plugin only minutes after it has ended.
"""

import asyncio
from collections.abc import Callable

from carrel.dialects import mig
from carrel.node.device_names import DeviceInventory
from carrel.node.kubelet.device_plugin import DevicePlugin


class SlicePlugins:
    def __init__(self, plugin_for: Callable[[str], DevicePlugin]) -> None:
        self.plugins: dict[str, DevicePlugin] = {}
        """Resource → its plugin."""
        self._plugin_for = plugin_for
        self._is_new = asyncio.Event()

    async def advertise(self, inventory: DeviceInventory) -> None:
        there = {mig.resource_of(gpu) for gpu in inventory.gpus}
        for resource in sorted(each for each in there if each.startswith(mig.PREFIX)):
            if resource not in self.plugins:
                self.plugins[resource] = self._plugin_for(resource)
                self._is_new.set()
        for resource, plugin in self.plugins.items():
            await plugin.advertise(inventory.gpu_devices(resource))

    async def run(self) -> None:
        """Runs until it is cancelled."""
        running = set[str]()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._is_new.clear()
                for resource in self.plugins.keys() - running:
                    tasks.create_task(self.plugins[resource].run())
                running = set(self.plugins)
                await self._is_new.wait()
