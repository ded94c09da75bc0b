"""The node's kubelet: its device plugin calls, and what it says about who has which device."""

from carrel.adapters.kubelet.checkpoint import KubeletCheckpoint
from carrel.adapters.kubelet.plugin import Plugin
from carrel.adapters.kubelet.pod_resources import KubeletPodResources

__all__ = ["KubeletCheckpoint", "KubeletPodResources", "Plugin"]
