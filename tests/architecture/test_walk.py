"""A pod's path stays within a component and what it calls."""

from tools.walk import walk


async def test_a_gpushare_pod_never_crosses_between_components_and_uses_fewer_than_twenty_borders() -> None:
    stages = await walk()

    assert [stage.name for stage in stages] == ["admission", "filter", "prioritize", "bind", "collect"]
    assert not {pair for stage in stages for pair in stage.components}
    assert len({pair for stage in stages for pair in stage.folders}) < 20
