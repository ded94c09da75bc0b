"""What the kubelet remembers of device plugins, from its checkpoint: it tells nobody, and keeps it over a restart."""

import asyncio
from pathlib import Path

from carrel.node.device_names import CHECKPOINT, remembered_resources
from carrel.node.interfaces import Unreachable
from carrel.parsing import Malformed


class KubeletCheckpoint:
    """Implements `node.interfaces.PluginMemory`."""

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
