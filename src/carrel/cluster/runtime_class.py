"""Which RuntimeClass GPU pods get that name none, and whether a RuntimeClass is NVIDIA's.

With NVIDIA's operator the default runtime of a node may be one that knows no GPUs: only pods of NVIDIA's RuntimeClass
get the GPUs that their environment names. A pod of a RuntimeClass that does not exist is refused by the API server, so
without a name in the setting, the class is given only where the cluster has it.
"""

from carrel.dialects import nvidia
from carrel.kubernetes.objects.resources import RUNTIME_CLASSES
from carrel.kubernetes.reflector import Informers

AUTO, NONE = "auto", "none"


class RuntimeClasses:
    def __init__(self, informers: Informers, setting: str = AUTO) -> None:
        """To be made before the informers run."""
        self._setting = setting
        self._classes = informers.watch(RUNTIME_CLASSES, optional=True)

    def chosen(self) -> str:
        """Empty: none."""
        if self._setting == AUTO:
            return nvidia.RUNTIME_CLASS if self._classes.store.get(nvidia.RUNTIME_CLASS) is not None else ""
        return "" if self._setting == NONE else self._setting

    def may_show_gpus(self, name: str) -> bool:
        """Whether it is NVIDIA's, by its name or by its handler. One that is not known yet may be."""
        known = self._classes.store.get(name)
        return known is None or nvidia.is_runtime(name) or nvidia.is_runtime(known.handler)
