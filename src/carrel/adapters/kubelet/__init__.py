"""The node's kubelet: its device plugin calls, and what it says about who has which device."""
