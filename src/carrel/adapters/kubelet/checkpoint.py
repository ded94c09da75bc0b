"""What the kubelet remembers of device plugins, from its checkpoint: it tells nobody, and keeps it over a restart."""

import asyncio
from pathlib import Path

from carrel.ports.node import Unreachable
from carrel.protocols import Malformed
from carrel.protocols.kubelet import CHECKPOINT, remembered_resources


class KubeletCheckpoint:
    """Implements `ports.node.PluginMemory`."""

    def __init__(self, plugin_folder: Path) -> None:
        self._file = plugin_folder / CHECKPOINT

    async def remembered(self) -> frozenset[str]:
        try:
            text = await asyncio.to_thread(self._file.read_text)
        except FileNotFoundError:
            return frozenset()  # it has never had a plugin
        except (OSError, UnicodeDecodeError) as error:
            raise Unreachable(f"{self._file}: {error}") from None
        try:
            return remembered_resources(text, str(self._file))
        except Malformed as malformed:
            raise Unreachable(str(malformed)) from None
