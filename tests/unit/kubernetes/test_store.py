"""The store, against a plain dictionary."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from carrel.ids import NodeName, PodUid
from carrel.kubernetes.objects.kinds import Pod, PodMetadata, PodSpec
from carrel.kubernetes.store import Key, Store

NAMES = st.sampled_from(["a", "b", "c"])
NAMESPACES = st.sampled_from(["lab", "hall"])
NODES = st.sampled_from(["", "n1", "n2"])


def pod(name: str, namespace: str = "lab", node: str = "", uid: str = "") -> Pod:
    return Pod(
        metadata=PodMetadata(name=name, namespace=namespace, uid=PodUid(uid)), spec=PodSpec(node_name=NodeName(node))
    )


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store: Store[Any] = Store({"node": lambda pod: [pod.spec.node_name] if pod.spec.node_name else []})
        self.model: dict[Key, Pod] = {}
        self.made = 0

    @rule(name=NAMES, namespace=NAMESPACES, node=NODES, keep_uid=st.booleans())
    def put(self, name: str, namespace: str, node: str, keep_uid: bool) -> None:
        key = Key(namespace, name)
        known = self.model.get(key)
        self.made += 1
        uid = known.metadata.uid if known and keep_uid else f"u{self.made}"
        item = pod(name, namespace, node, uid)
        assert self.store.put(item) is known
        self.model[key] = item

    @rule(name=NAMES, namespace=NAMESPACES)
    def drop(self, name: str, namespace: str) -> None:
        assert self.store.drop(Key(namespace, name)) is self.model.pop(Key(namespace, name), None)

    @invariant()
    def every_way_finds_the_same(self) -> None:
        assert len(self.store) == len(self.model)
        assert {id(item) for item in self.store} == {id(item) for item in self.model.values()}
        for key, item in self.model.items():
            assert self.store.get(key.name, key.namespace) is item
            assert self.store.by_uid(item.metadata.uid) is item
        for node in ("", "n1", "n2", "n3"):
            expected = {id(item) for item in self.model.values() if node and item.spec.node_name == node}
            assert {id(item) for item in self.store.find("node", node)} == expected

    @invariant()
    def nothing_is_left_of_what_went(self) -> None:
        for made in range(self.made + 1):
            found = self.store.by_uid(f"u{made}")
            assert found is None or found in self.model.values()


TestTheStore = StoreMachine.TestCase


def test_a_snapshot_does_not_change() -> None:
    store: Store[Any] = Store()
    store.put(pod("a"))
    before = iter(store)
    store.put(pod("b"))
    store.drop(Key("lab", "a"))
    assert [item.metadata.name for item in before] == ["a"]
