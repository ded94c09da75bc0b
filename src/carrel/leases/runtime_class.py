"""Which RuntimeClass GPU pods get that name none.

With NVIDIA's operator the default runtime of a node may be one that knows no GPUs: only pods of NVIDIA's RuntimeClass
get the GPUs that their environment names. A pod of a RuntimeClass that does not exist is refused by the API server, so
without a name in the setting, the class is given only where the cluster has it.
"""

from carrel.dialects import nvidia
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.resources import RUNTIME_CLASSES

AUTO, NONE = "auto", "none"


class RuntimeClassChoice:
    def __init__(self, informers: Informers, setting: str = AUTO) -> None:
        """To be made before the informers run."""
        self._setting = setting
        only_it = Selection(fields=f"metadata.name={nvidia.RUNTIME_CLASS}")
        self._classes = informers.watch(RUNTIME_CLASSES, only_it, optional=True) if setting == AUTO else None

    def name(self) -> str:
        """Empty: none."""
        if self._classes is not None:
            return nvidia.RUNTIME_CLASS if self._classes.store.get(nvidia.RUNTIME_CLASS) is not None else ""
        return "" if self._setting == NONE else self._setting
