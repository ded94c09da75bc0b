"""Whether NVIDIA's own device plugin serves this node, told by its socket in the kubelet's folder.

A plugin that was killed leaves its socket behind. Nobody listens there, and as long as it counted as a plugin, nobody
would advertise whole GPUs. But a plugin that restarts is away for some seconds too: only a socket where nobody has
listened for a while is taken for left over.
"""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from carrel.node.device_names import NVIDIA_SOCKETS

LEFT_OVER_S = 60.0
"""Longer than a plugin takes to restart."""
TRY_EVERY_S = 5.0
CONNECT_S = 1.0
SERVES = "NVIDIA's device plugin serves this node, and nodes.plugin is native"
SET_COEXIST = "it may give a container another GPU than Carrel; set nodes.plugin: coexist, or remove that plugin"


class NvidiaPluginSocket:
    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """`clock`: seconds; only differences mean something."""
        self._folder = folder
        self._clock = clock
        self._silent_since: float | None = None
        self._tried: tuple[Sequence[Path], float] = ((), float("-inf"))

    def is_served(self) -> bool:
        """Whether the plugin is there, or may come back."""
        sockets, now = sorted(self._folder.glob(NVIDIA_SOCKETS)), self._clock()
        if not sockets:
            self._silent_since = None
            return False
        if self._tried[0] != sockets or now - self._tried[1] >= TRY_EVERY_S:
            self._tried = (sockets, now)
            if any(map(_listens, sockets)):
                self._silent_since = None
            elif self._silent_since is None:
                self._silent_since = now
        return self._silent_since is None or now - self._silent_since < LEFT_OVER_S

    def trouble(self) -> str:
        """What an admin should know; empty: nothing."""
        self.is_served()  # it may not have been tried yet
        sockets = sorted(each.name for each in self._folder.glob(NVIDIA_SOCKETS))
        if not sockets:
            return ""
        names = ", ".join(sockets)
        if self._silent_since is None:
            return f"{SERVES} ({names}): {SET_COEXIST}"
        return f"nobody listens on {names}, a socket of NVIDIA's device plugin: delete the file if that plugin is gone"


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(str(path))
        except FileNotFoundError:
            return False
        except TimeoutError:
            return True  # it is there, and busy
        except OSError:
            return False
    return True
