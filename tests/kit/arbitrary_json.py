"""Arbitrary JSON, for tests of readers: what a peer, a user or an attacker may send."""

from typing import Any

from hypothesis import strategies as st

# A few words that readers know, so that garbage gets past the first look-up.
WORDS = st.sampled_from(["a", "b", "request", "object", "uid", "items", "metadata", "name", "Pod", "NodeNames"])


def scalars() -> st.SearchStrategy[Any]:
    return (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8)
    )


def documents(keys: st.SearchStrategy[str] = WORDS) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | st.text(max_size=3), inner, max_size=4),
        max_leaves=12,
    )
