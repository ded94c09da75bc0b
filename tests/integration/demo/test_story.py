"""The story of the demo, where something does not happen."""

import pytest

from carrel.demo import story
from carrel.demo.story import Story
from tests.kit.gpus import a_node
from tests.kit.lab import a_lab


async def test_a_story_that_does_not_come_true_says_what_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler runs, so no pod gets a GPU."""
    monkeypatch.setattr(story, "STEP_S", 0.01)
    said: list[str] = []
    nodes = [a_node("n1", gpus=3)]
    async with a_lab(nodes) as lab, lab.replica() as replica:
        why = await Story(lab.client, replica, nodes, False, said.append, shown_s=0).run()

    assert why == "after 0 s it is still not true that hal/train-1 uses a GPU"
    assert said == [f"{why}: the demo goes on without the rest of the story"]
