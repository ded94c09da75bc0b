"""The names of the nodes that somebody asks about, where one of them is found without a look at each."""

from collections.abc import Sequence


class NodeNames(Sequence[str]):
    """Never changes. `in` is fast; everything else may first have to read all names."""
