"""The node's kubelet: the device plugin that it calls, and what it says about which container has which device.

device_plugin    advertises devices to the kubelet, and answers its calls
pod_resources    which devices the kubelet has allocated to which container, and which device plugins it remembers
grpc_stubs/      generated from the kubelet's .proto files
"""

from carrel.node.kubelet.device_plugin import DevicePlugin
from carrel.node.kubelet.pod_resources import KubeletCheckpoint, KubeletPodResources

__all__ = ["DevicePlugin", "KubeletCheckpoint", "KubeletPodResources"]
