"""Which device plugins the kubelet remembers, from its checkpoint file: no API of the kubelet says it."""

import asyncio
from pathlib import Path

from carrel.node.device_names import CHECKPOINT, remembered_resources
from carrel.node.interfaces import KubeletUnreachable
from carrel.parsing import Malformed


class KubeletCheckpoint:
    def __init__(self, plugin_folder: Path) -> None:
        self._file = plugin_folder / CHECKPOINT

    async def remembered(self) -> frozenset[str]:
        """The resources that the kubelet believes a device plugin manages: it asks a plugin whenever a pod wants some,
        also for minutes after the plugin has ended, and then refuses the pod. Raises `KubeletUnreachable`."""
        try:
            text = await asyncio.to_thread(self._file.read_text)
        except FileNotFoundError:
            return frozenset()  # it has never had a plugin
        except (OSError, UnicodeDecodeError) as error:
            raise KubeletUnreachable(f"{self._file}: {error}") from None
        try:
            return remembered_resources(text, str(self._file))
        except Malformed as malformed:
            raise KubeletUnreachable(str(malformed)) from None
