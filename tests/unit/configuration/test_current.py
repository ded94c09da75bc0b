"""What a process does with a change of the configuration, and what a change says."""

from dataclasses import dataclass, replace

from carrel.configuration.current import CurrentConfiguration, changes
from carrel.configuration.fields import Change
from carrel.configuration.reading import read
from carrel.configuration.schema import Configuration


def test_changes_name_each_field_that_differs_with_both_values_and_when_it_takes_effect() -> None:
    new = read("memory: {unit: GiB}\ntiers: {minimumTime: 5m}\npods: {schedulers: [a, b]}")
    assert [(str(each), each.change) for each in changes(Configuration(), new)] == [
        ("memory.unit: MiB → GiB", Change.WHEN_FREE),
        ("pods.schedulers: ['gpu-scheduler'] → ['a', 'b']", Change.RESTART),
        ("tiers.minimumTime: 10m → 5m", Change.AT_ONCE),
    ]
    assert list(changes(new, new)) == []


@dataclass
class Options:
    victims: str


def test_options_follow_the_configuration_and_listeners_are_told() -> None:
    current = CurrentConfiguration(Configuration())
    options = current.follow(lambda of: Options(of.tiers.victims.value))
    told: list[Configuration] = []
    current.on_change(told.append)
    new = read("tiers: {victims: random}")
    current.apply(new)
    assert options.victims == "random"
    assert told == [new] and current.value == replace(Configuration(), tiers=new.tiers)
