"""The objects of one kind, in memory, found by name, by uid or by declared indexes.

One reflector writes it; everybody reads it, and between two awaits it is always consistent. The cost of a look-up
depends on what it returns, never on the size of the store.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Object

V = TypeVar("V", bound=Object)


class Key(NamedTuple):
    namespace: str
    name: str


def key_of(item: Object) -> Key:
    return Key(item.metadata.namespace, item.metadata.name)


NONE: tuple[str, ...] = ()

IndexFunction = Callable[[V], Iterable[str]]
"""The index values of an object: `lambda pod: [pod.spec.node_name]`."""


class Store(Generic[V]):
    def __init__(
        self, indexes: Mapping[str, IndexFunction[V]] | None = None, isolation: Isolation | None = None
    ) -> None:
        self._items: dict[Key, V] = {}
        self._by_uid: dict[str, V] = {}
        self._isolation = isolation or Isolation()
        self._indexes: dict[str, dict[str, dict[Key, V]]] = {name: {} for name in indexes or ()}
        self._words = [(self._indexes[name], _words_by(function)) for name, function in (indexes or {}).items()]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[V]:
        """All objects at this moment. They are shared, not copied: a change replaces them."""
        return iter(tuple(self._items.values()))

    def get(self, name: str, namespace: str = "") -> V | None:
        return self._items.get(Key(namespace, name))

    def by_uid(self, uid: str) -> V | None:
        return self._by_uid.get(uid)

    @property
    def uids(self) -> Mapping[str, V]:
        """All objects by uid, as they are at any time."""
        return self._by_uid

    def find(self, index: str, word: str) -> tuple[V, ...]:
        """All objects that have this value in the index, in the order in which they were added."""
        return tuple(self._indexes[index].get(word, {}).values())

    def put(self, item: V) -> V | None:
        """Replaces the object of the same name, which is returned."""
        key = key_of(item)
        old = self._items.get(key)
        if old is not None:
            self._forget(key, old)
        self._items[key] = item
        self._by_uid[item.metadata.uid] = item
        ask = self._isolation.ask
        for index, words_of in self._words:
            # None, if they cannot be read from the object: then it is found by its name and its uid only.
            for word in ask("index", item, words_of, NONE):
                found = index.get(word)
                if found is None:
                    found = index[word] = {}
                found[key] = item
        return old

    def drop(self, key: Key) -> V | None:
        old = self._items.pop(key, None)
        if old is not None:
            self._forget(key, old)
        return old

    def _forget(self, key: Key, old: V) -> None:
        self._by_uid.pop(old.metadata.uid, None)
        for index, words_of in self._words:
            for word in self._isolation.ask("index", old, words_of, NONE):
                found = index.get(word)
                if found is not None:
                    found.pop(key, None)
                    if not found:
                        del index[word]


def _words_by(function: IndexFunction[V]) -> Callable[[V], tuple[str, ...]]:
    """Whatever it raises, it raises when it is called."""
    return lambda item: tuple(function(item))
