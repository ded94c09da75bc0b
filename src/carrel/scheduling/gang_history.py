"""What kube-scheduler asked about a gang lately, and what its members were told."""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True)
class GangHistory:
    at: float = 0.0
    """When kube-scheduler asked last."""
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Member → the nodes of its last filter call that have GPUs, in the ledger's order. Equal ones are one object:
    there may be thousands of nodes, and hundreds of members."""
    told: dict[str, str] = field(default_factory=dict)
    """Member → the node that it was told, until it comes to be bound."""
    until: float = 0.0
    """When the time of a plan would have been up that ended because of one member. The next plan has no more: a gang
    of which one or another fails again and again must let others go first some day."""

    def remember(self, uid: str, nodes: tuple[str, ...]) -> None:
        known = {id(each): each for each in self.nodes.values()}.values()
        self.nodes[uid] = next((each for each in known if each == nodes), nodes)

    def forget_others(self, uids: Collection[str]) -> None:
        """Only these members wait now."""
        self.nodes = {uid: nodes for uid, nodes in self.nodes.items() if uid in uids}
        self.told = {uid: node for uid, node in self.told.items() if uid in uids}
