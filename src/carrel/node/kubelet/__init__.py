"""The node's kubelet: its device plugin calls, and what it says about who has which device."""

from carrel.node.kubelet.checkpoint import KubeletCheckpoint
from carrel.node.kubelet.device_plugin import Plugin
from carrel.node.kubelet.pod_resources import KubeletPodResources

__all__ = ["KubeletCheckpoint", "KubeletPodResources", "Plugin"]
