"""The elected controller decides which configuration is in force: what is broken or unsafe changes nothing."""

import asyncio
from collections.abc import Callable

import pytest
import yaml

from carrel.cluster.configuration_record import APPLIED, GIVEN, NoConfiguration, Record, find, first_configuration
from carrel.configuration.reading import Unusable
from carrel.kubernetes.cluster import AlreadyExists, Conflict, DeleteOptions, OutcomeUnknown
from carrel.kubernetes.objects.resources import CONFIG_MAPS, EVENTS, PODS
from kubernetes_in_memory.faults import Crashed, FaultPlan, Faulty
from tests.kit.configuration import configure, wait_recorded
from tests.kit.configuring import change, configuring_on, deciding, recorded
from tests.kit.eventually import LIMIT_S, eventually
from tests.kit.gpus import a_node
from tests.kit.lab import OURS, Lab, a_lab

WHOLE = {"nvidia.com/gpu": "1"}


async def test_the_first_configuration_is_recorded_with_its_source() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        await configure(lab.client, "tiers: {victims: random}")
        await configuring_on(replica).round()
        record = await recorded(lab)
        assert (await first_configuration(lab.client, OURS)).tiers.victims.value == "random"
    assert (record.text, record.changes, record.refused.mistakes) == ("tiers: {victims: random}", "", [])
    assert [(each.by, each.changes) for each in record.history] == [("the installation", ["the first one"])]


async def test_without_any_object_nothing_is_recorded_and_no_default_is_used_by_accident() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        assert await configuring_on(replica).round() is None
        with pytest.raises(NoConfiguration, match="no ConfigMap carrel/carrel"):
            await first_configuration(lab.client, OURS)


async def test_a_first_configuration_that_is_broken_is_none() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        await configure(lab.client, "tiers: {victim: random}")
        with pytest.raises(Unusable, match="did you mean victims"):
            await configuring_on(replica).round()
        with pytest.raises(NoConfiguration, match="did you mean victims"):
            await first_configuration(lab.client, OURS)


async def test_a_broken_object_changes_nothing_and_is_told_once() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        await configure(lab.client, "tiers: {victims: random}")
        await configuring.round()
        await configure(lab.client, "tiers: {victims: nobody, revocationGrace: 30s}\nmemory: {units: GiB}")
        await configuring.round()
        first = await recorded(lab)
        writes = len(replica.transport.writes)
        await configuring.round()
        again, more_writes = await recorded(lab), len(replica.transport.writes) - writes
        in_force = await first_configuration(lab.client, OURS)
        events = [each for each in (await lab.client.list(EVENTS)).items if each.reason == "ConfigurationRefused"]
        await configure(lab.client, "tiers: {victims: fair}")
        await configuring.round()
        mended = await recorded(lab)
    assert first.text == "tiers: {victims: random}"
    assert first.refused.mistakes == [
        "memory.units is no field; did you mean unit?",
        "tiers.victims is 'nobody'; expected fair or random",
    ]
    assert in_force.tiers.revocation_grace.total_seconds() == 0, "nothing of it is in force, not even what is right"
    assert (again, more_writes) == (first, 0)
    assert len(events) == 2
    assert (mended.text, mended.refused.mistakes) == ("tiers: {victims: fair}", [])


async def test_a_deleted_object_leaves_the_last_good_configuration() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        await configure(lab.client, "tiers: {victims: random}")
        await configuring.round()
        await lab.client.delete(CONFIG_MAPS, GIVEN, OURS)
        await configuring.round()
        record = await recorded(lab)
        in_force = await first_configuration(lab.client, OURS)
    assert record.refused.mistakes == ["the ConfigMap carrel/carrel is gone: the last good configuration goes on"]
    assert in_force.tiers.victims.value == "random"


async def test_a_record_that_somebody_deletes_is_written_again_and_no_unsafe_change_slips_through() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        await configure(lab.client, "{}")
        await configuring.round()
        before = await recorded(lab)
        assert await replica.bind(await lab.pod("train", limits=WHOLE), "n1") is None
        await eventually(lambda: len(replica.ledger.holders()) == 1, "the pod holds a GPU")
        await lab.client.delete(CONFIG_MAPS, APPLIED, OURS)
        await configure(lab.client, "memory: {unit: GiB}")
        await configuring.round()
        after = await recorded(lab)
    assert (after.text, after.history) == (before.text, before.history)
    assert after.refused.mistakes[0].startswith("memory.unit: MiB → GiB: not while GPUs are held")


async def test_a_record_that_somebody_edits_is_written_again_and_no_unsafe_change_slips_through() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        await configure(lab.client, "tiers: {victims: random}")
        await configuring.round()
        before = await recorded(lab)
        assert await replica.bind(await lab.pod("train", limits=WHOLE), "n1") is None
        await eventually(lambda: len(replica.ledger.holders()) == 1, "the pod holds a GPU")
        await configure(lab.client, "memory: {unit: GiB}", APPLIED)
        await configuring.round()
        after = await recorded(lab)
    assert after.data() == before.data()


async def test_an_answer_that_is_lost_is_no_record_of_somebody_else(caplog: pytest.LogCaptureFixture) -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        await configure(lab.client, "{}")
        await configuring.round()
        write = configuring._write

        async def write_and_lose_the_answer(record: Record) -> None:
            await write(record)
            raise OutcomeUnknown(0, "", "the connection was closed")

        configuring._write = write_and_lose_the_answer  # type: ignore[method-assign]
        await configure(lab.client, "tiers: {victims: random}")
        with pytest.raises(OutcomeUnknown):
            await configuring.round()
        configuring._write = write  # type: ignore[method-assign]
        await configuring.round()
        record = await recorded(lab)
    assert (record.text, len(record.history)) == ("tiers: {victims: random}", 2)
    assert "not_ours" not in caplog.text


async def test_what_people_change_is_laid_over_it_and_the_history_names_them() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        await configure(lab.client, "bookings: {rules: {maxGpus: 8}}")
        await configuring.round()
        await change(lab, "bookings: {rules: {maxGpus: 2}}", "ada", "the deadline")
        await configuring.round()
        await configure(lab.client, "bookings: {rules: {maxGpus: 8, planned: 3}}")
        await configuring.round()
        record = await recorded(lab)
        rules = (await first_configuration(lab.client, OURS)).bookings.rules
    assert (rules.max_gpus, rules.planned) == (2, 3)
    assert [(each.by, each.reason, each.changes) for each in record.history[1:]] == [
        ("ada", "the deadline", ["bookings.rules.maxGpus: 8 → 2"]),
        ("the installation", "", ["bookings.rules.planned: 1 → 3"]),
    ]


async def test_people_change_no_unit_hub_or_trusted_account() -> None:
    async with a_lab([]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        await configure(lab.client, "{}")
        await configuring.round()
        await change(lab, "pods: {trustedUsers: [mallory]}\nmemory: {unit: GiB}")
        await configuring.round()
        record = await recorded(lab)
    assert len(record.refused.mistakes) == 2
    assert record.refused.mistakes[0].startswith("pods.trustedUsers cannot be changed here")
    assert record.changes == ""


async def test_reasons_and_values_of_any_length_never_fill_the_record() -> None:
    """A record without room would be the last one: nobody could change anything any more."""
    async with a_lab([]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        people = {f"user{each}": f"user{each}@lab.example" for each in range(4000)}
        for turn in range(60):
            text = yaml.safe_dump({"hubs": {"users": {**people, "ada": f"ada{turn}@lab.example"}}})
            await configure(lab.client, text)
            await change(lab, f"tiers: {{opportunisticGpus: {turn + 1}}}", "ada" * 9000, "because " * 20_000)
            await configuring.round()
        record = await recorded(lab)
    last = record.history[-1]
    assert record.configuration().tiers.opportunistic_gpus == 60
    assert (len(record.history), len(last.by), len(last.reason)) == (50, 500, 500)
    assert last.changes == [
        "hubs.users: {'ada': 'ada58@lab.example'} → {'ada': 'ada59@lab.example'}",
        "tiers.opportunisticGpus: 59 → 60",
    ]
    assert sum(len(each.encode()) for each in record.data().values()) < 512 * 1024


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("tiers: {victims: !!bool perhaps}", id="a tag that does not fit"),
        pytest.param("bookings: {publicUrl: 'http://['}", id="half a URL"),
        pytest.param("".join(f"a{each}: 1\n" for each in range(20_000)), id="20,000 unknown fields"),
    ],
)
async def test_whatever_somebody_writes_is_refused_and_the_controller_goes_on(text: str) -> None:
    async with a_lab([]) as lab:
        await configure(lab.client, "{}")
        async with deciding(lab):
            await wait_recorded(lab.client)
            await change(lab, text)
            await until(lambda record: bool(record.refused.mistakes), lab)
            await change(lab, "tiers: {victims: random}")
            await until(lambda record: record.configuration().tiers.victims.value == "random", lab)


async def until(is_so: Callable[[Record], bool], lab: Lab) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so(await recorded(lab)):  # noqa: ASYNC110 # only the API server knows
            await asyncio.sleep(0.01)


async def test_a_unit_is_refused_while_a_pod_holds_a_gpu_and_applied_by_itself_afterwards() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        configuring = configuring_on(replica)
        await configure(lab.client, "{}")
        await configuring.round()
        assert await replica.bind(await lab.pod("train", limits=WHOLE), "n1") is None
        await eventually(lambda: len(replica.ledger.holders()) == 1, "the pod holds a GPU")
        await configure(lab.client, "memory: {unit: GiB}\ntiers: {victims: random}")
        await configuring.round()
        refused = await recorded(lab)
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: replica.pods.store.get("train", "lab") is None, "the pod is gone")
        await replica.collector.collect()
        await eventually(lambda: not replica.ledger.holders(), "nobody holds a GPU")
        await configuring.round()
        applied = await recorded(lab)
    (mistake,) = refused.refused.mistakes
    assert mistake.startswith("memory.unit: MiB → GiB: not while GPUs are held")
    assert refused.text == "{}", "an unsafe change is refused as a whole"
    assert applied.refused.mistakes == []
    assert applied.configuration().memory.unit.value == "GiB"
    assert applied.history[-1].changes == ["memory.unit: MiB → GiB", "tiers.victims: fair → random"]


@pytest.mark.parametrize("after", [1, 2, 3], ids=lambda count: f"after write {count}")
async def test_a_controller_that_crashes_is_followed_by_one_that_does_the_rest(after: int) -> None:
    """Two Events and the record are written."""
    async with a_lab([]) as lab:
        await configure(lab.client, "{}")
        async with lab.replica() as replica:
            await configuring_on(replica).round()
        await configure(lab.client, "tiers: {victims: wrong, atEnd: never}")
        crashing = Faulty(lab.api, FaultPlan(1, crash_after_write=after))
        with pytest.raises(Crashed):
            async with lab.replica(crashing) as replica:
                await configuring_on(replica).round()
        async with lab.replica() as replica:
            await configuring_on(replica).round()
        record = await recorded(lab)
        events = [each for each in (await lab.client.list(EVENTS)).items if each.reason == "ConfigurationRefused"]
    assert (record.text, len(record.refused.mistakes), len(events)) == ("{}", 2, 2)


async def test_a_record_of_another_version_of_carrel_is_replaced_by_what_is_given() -> None:
    """An upgrade that has lost a field: nobody may be stuck with a record that nobody can read any more."""
    async with a_lab([]) as lab, lab.replica() as replica:
        await configure(lab.client, "tiers: {fieldOfBefore: 1}", APPLIED)
        await configure(lab.client, "tiers: {victims: random}")
        assert (await first_configuration(lab.client, OURS)).tiers.victims.value == "random"
        await configuring_on(replica).round()
        record = await recorded(lab)
    assert (record.text, record.refused.mistakes) == ("tiers: {victims: random}", [])
    assert record.history[-1].changes == ["all of it: the record before cannot be read by this version of Carrel"]


async def test_a_controller_whose_first_configuration_breaks_before_it_leads_goes_on() -> None:
    async with a_lab([]) as lab:
        await configure(lab.client, "tiers: {victims: wrong}")
        async with deciding(lab):
            await asyncio.sleep(0)
            await configure(lab.client, "tiers: {victims: random}")

            async def is_recorded() -> bool:
                return await find(lab.client, APPLIED, OURS) is not None

            async with asyncio.timeout(LIMIT_S):
                while not await is_recorded():  # noqa: ASYNC110 # only the API server knows
                    await asyncio.sleep(0.01)
        assert (await recorded(lab)).configuration().tiers.victims.value == "random"


async def test_of_two_controllers_that_both_believe_to_lead_one_writes_and_the_other_looks_again() -> None:
    async with a_lab([]) as lab, lab.replica() as one, lab.replica() as two:
        await configure(lab.client, "{}")
        await configuring_on(one).round()
        await configure(lab.client, "tiers: {victims: random}")
        slow = configuring_on(two)
        write = slow._write

        async def write_late(record):  # type: ignore[no-untyped-def]
            await configure(lab.client, "tiers: {victims: random, atEnd: keep}")
            await configuring_on(one).round()
            await write(record)

        slow._write = write_late  # type: ignore[method-assign]
        with pytest.raises((Conflict, AlreadyExists)):
            await slow.round()
        slow._write = write  # type: ignore[method-assign]
        await slow.round()
        record = await recorded(lab)
    assert record.text == "tiers: {victims: random, atEnd: keep}"
    assert len(record.history) == 2


async def test_while_no_controller_leads_the_recorded_configuration_goes_on() -> None:
    """What is changed meanwhile is decided about by the next one."""
    async with a_lab([]) as lab:
        await configure(lab.client, "tiers: {victims: random}")
        async with lab.replica() as replica:
            await configuring_on(replica).round()
        await configure(lab.client, "tiers: {victims: fair}")
        await change(lab, "tiers: {opportunisticGpus: 2}")
        meanwhile = await first_configuration(lab.client, OURS)
        async with lab.replica() as replica:
            await configuring_on(replica).round()
        afterwards = await first_configuration(lab.client, OURS)
    assert (meanwhile.tiers.victims.value, meanwhile.tiers.opportunistic_gpus) == ("random", 0)
    assert (afterwards.tiers.victims.value, afterwards.tiers.opportunistic_gpus) == ("fair", 2)
