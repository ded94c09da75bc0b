"""Which nodes changed, and in which order, so that whoever remembers an answer looks again only at those."""

from collections.abc import Collection, Sequence
from itertools import takewhile


class NodeChanges:
    def __init__(self) -> None:
        self.moment = 0
        """Counts the changes."""
        self._moments: dict[str, int] = {}  # node → the moment it last changed, the latest at the end
        self._complete_since = 0

    def __len__(self) -> int:
        return len(self._moments)

    def note(self, node: str) -> None:
        """The node has changed."""
        self.moment += 1
        self._moments.pop(node, None)
        self._moments[node] = self.moment

    def forget(self, node: str) -> bool:
        """The node is gone, which counts as a change. False if it was not known."""
        if self._moments.pop(node, None) is None:
            return False
        self.moment += 1
        return True

    def keep_only(self, nodes: Collection[str]) -> None:
        """The others are gone, and since when is no longer remembered."""
        gone = [name for name in self._moments if name not in nodes]
        if gone:
            self._complete_since = max(self._complete_since, self._moments[gone[-1]])
        for name in gone:
            del self._moments[name]

    def is_complete_since(self, moment: int) -> bool:
        """Whether it is remembered which nodes changed after that moment, also of those that are gone."""
        return moment >= self._complete_since

    def since(self, moment: int) -> Sequence[str]:
        """The nodes that changed after that moment and are not gone, the latest first."""
        return [node for node, _ in takewhile(lambda change: change[1] > moment, reversed(self._moments.items()))]
