"""`carrel config` as people run it, on the embedded API over HTTP, with a controller that decides."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path

import pytest
import yaml

from carrel.cli import configuration_change
from carrel.cluster.configuration_record import CHANGES, GIVEN, find
from carrel.configuration.reading import every_field, read
from carrel.configuration.schema import Configuration
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.parsing.time import instant, moment
from kubernetes_in_memory.http_server import serve
from tests.kit.carrel_command import carrel, carrel_process
from tests.kit.configuration import configure
from tests.kit.configuring import change, configuring_on, deciding, recorded
from tests.kit.gpus import a_node
from tests.kit.lab import OURS, Lab, a_lab

RECORDED = "the controller has recorded it, and all components follow within seconds"
GIVEN_TEXT = "tiers: {victims: random}\nbookings: {rules: {maxGpus: 8}}\n"
FIELDS = len(list(every_field(Configuration())))


@asynccontextmanager
async def a_configured_lab(text: str = GIVEN_TEXT) -> AsyncIterator[tuple[Lab, str]]:
    """A controller has recorded it, and is gone."""
    async with a_lab([a_node("n1")], in_real_time=True) as lab, serve(lab.api) as served:
        await configure(lab.client, text)
        await decide(lab)
        yield lab, served.url


async def decide(lab: Lab) -> None:
    async with lab.replica() as replica:
        await configuring_on(replica).round()


async def config(url: str, *words: str) -> tuple[int, str, str]:
    said = await carrel("config", *words, "--server", url)
    return said.code, said.out, said.err


# --- show ------------------------------------------------------------------------------------------------------------


async def test_show_names_each_value_that_differs_and_its_source() -> None:
    async with a_configured_lab() as (lab, url):
        await change(lab, "bookings: {rules: {maxGpus: 2}}", "ada", "the deadline")
        await decide(lab)
        code, out, err = await config(url, "show")
        at = moment(instant((await recorded(lab)).history[-1].at, "", ""), UTC)
        _, one, _ = await config(url, "show", "bookings.rules.maxGpus")
        _, everything, _ = await config(url, "show", "--all")
    assert (code, err) == (0, "")
    assert [line.split(maxsplit=2) for line in out.splitlines()[:3]] == [
        ["FIELD", "VALUE", "SOURCE"],
        ["tiers.victims", "random", "installation"],
        ["bookings.rules.maxGpus", "2", f"changed by ada on {at}"],
    ]
    assert "more have their defaults" in out
    assert f"Source:   changed by ada on {at} (the deadline)" in one
    assert "Reason:   Bookings of one person never overlap" in one
    assert "carrel config set bookings.rules.maxGpus VALUE" in one
    assert len(everything.splitlines()) > 50 and "default" in everything


async def test_show_as_yaml_is_a_file_that_can_be_given(tmp_path: Path) -> None:
    async with a_configured_lab() as (_, url):
        _, out, _ = await config(url, "show", "-o", "yaml")
        _, all_of_it, _ = await config(url, "show", "--all", "-o", "json")
    assert read(out) == read(GIVEN_TEXT) == read(yaml.safe_dump(json.loads(all_of_it)))


async def test_show_says_first_that_what_is_given_is_refused() -> None:
    async with a_configured_lab() as (lab, url):
        await configure(lab.client, "tiers: {victims: nobody}\nlabs: {}")
        await decide(lab)
        _, out, _ = await config(url, "show")
        _, as_yaml, err = await config(url, "show", "-o", "yaml")
    lines = out.splitlines()
    assert lines[0].startswith("✗ What is given now is refused since ")
    assert lines[1:3] == [
        "    labs is no field; did you mean lab?",
        "    tiers.victims is 'nobody'; expected fair or random",
    ]
    assert "random" in out and "✗ What is given now is refused" in err
    assert read(as_yaml) == read(GIVEN_TEXT)


async def test_show_before_a_controller_has_led_shows_what_is_given() -> None:
    async with a_lab([], in_real_time=True) as lab, serve(lab.api) as served:
        await lab.client.delete(CONFIG_MAPS, GIVEN, OURS)
        nothing = await config(served.url, "show")
        await configure(lab.client, GIVEN_TEXT)
        code, out, _ = await config(served.url, "show")
        _, history, _ = await config(served.url, "history")
    assert nothing[0] == 4 and "There is no configuration" in nothing[2]
    assert code == 0 and "random" in out
    assert history == "Nothing is recorded yet: no controller has led.\n"


async def test_a_field_that_does_not_exist_is_named_with_the_nearest() -> None:
    async with a_configured_lab() as (_, url):
        code, _, err = await config(url, "show", "tiers.victim")
    assert (code, err.splitlines()[1]) == (2, "  Did you mean tiers.victims?")


async def test_without_a_cluster_a_file_is_shown_and_the_defaults_can_be_pasted(tmp_path: Path) -> None:
    defaults = await carrel("config", "show", "--defaults")
    file = tmp_path / "carrel.yaml"
    file.write_text(GIVEN_TEXT)
    shown = await carrel("config", "show", "--config", str(file))
    assert read(defaults.out) == Configuration()
    assert all(len(line) < 120 for line in defaults.out.splitlines())
    assert "tiers.victims" in shown.out and "installation" in shown.out


# --- check and diff --------------------------------------------------------------------------------------------------


async def test_check_says_all_mistakes_at_once_and_ends_with_two(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GIVEN_TEXT)
    bad.write_text("tiers: {victim: fair, minimumTime: 10}\nnodes: {plugin: nvidia}\n")
    well, wrong = await carrel("config", "check", str(good)), await carrel("config", "check", str(bad))
    missing = await carrel("config", "check", str(tmp_path / "none.yaml"))
    assert (well.code, well.out) == (0, f"{good} is good: 2 of {FIELDS} fields differ from the defaults.\n")
    assert wrong.code == 2
    assert wrong.err.splitlines() == [
        f"✗ {bad} cannot be used: 3 mistakes",
        "  nodes.plugin is 'nvidia'; expected native or coexist",
        "  tiers.victim is no field; did you mean victims?",
        "  tiers.minimumTime is '10'; expected a length of time such as 90s, 10m, 24h or 14d, from 0s to 1d",
        "  Try:  carrel config show --defaults",
    ]
    assert missing.code == 2 and "No such file" in missing.err


async def test_check_reads_stdin_and_says_what_the_cluster_would_refuse_now(tmp_path: Path) -> None:
    file = tmp_path / "carrel.yaml"
    file.write_text("memory: {unit: GiB}\nlab: {timezone: Europe/Stockholm}\n")
    async with a_configured_lab("{}") as (lab, url):
        free = await carrel("config", "check", str(file), "--against-cluster", "--server", url)
        async with lab.replica() as replica:
            await replica.bind(await lab.pod("train", limits={"nvidia.com/gpu": "1"}), "n1")
        held = await carrel("config", "check", str(file), "--against-cluster", "--server", url)
    assert (free.code, held.code) == (0, 0)
    assert "would be refused now" not in free.out
    assert "✗ All of it would be refused now, because of memory.unit: 1 pod holds GPUs." in held.out
    assert "after components have started again, by themselves" in held.out


async def test_diff_says_what_changes_when_and_what_people_keep(tmp_path: Path) -> None:
    file = tmp_path / "carrel.yaml"
    file.write_text("bookings: {rules: {maxGpus: 4, planned: 3}}\n")
    async with a_configured_lab() as (lab, url):
        await change(lab, "bookings: {rules: {maxGpus: 2}}")
        await decide(lab)
        code, out, _ = await config(url, "diff", str(file))
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    assert lines == [
        "FIELD NOW THEN TAKES EFFECT",
        "tiers.victims random fair at once",
        "bookings.rules.planned 1 3 at once",
        "bookings.rules.maxGpus stays 2, which people have set: carrel config reset bookings.rules.maxGpus",
    ]


# --- set and reset ---------------------------------------------------------------------------------------------------


async def test_set_and_reset_are_in_force_when_the_command_ends_and_in_the_history() -> None:
    async with a_configured_lab() as (lab, url), deciding(lab):
        words = ("set", "bookings.rules.maxDuration", "7d", "--reason", "a deadline", "--server", url)
        done = await carrel_process("config", *words)  # in this process the controller would log to its stderr
        changes = await find(lab.client, CHANGES, OURS)
        again = await config(url, "set", "bookings.rules.maxDuration", "7d", "--reason", "a deadline")
        back = await config(url, "reset", "bookings.rules.maxDuration")
        nothing = await config(url, "reset", "bookings.rules.maxDuration")
        _, out, _ = await config(url, "history", "-o", "json")
        _, table, _ = await config(url, "history")
    assert (done.code, done.out, done.err) == (0, f"bookings.rules.maxDuration is 7d now: {RECORDED}\n", "")
    assert changes is not None and changes.metadata.annotations["carrel.dev/reason"] == "a deadline"
    who = changes.metadata.annotations["carrel.dev/changed-by"]
    assert again[1] == "bookings.rules.maxDuration is so already\n"
    assert back[1] == f"bookings.rules.maxDuration is 14d now: {RECORDED}\n"
    assert nothing[1].startswith("Nobody has changed bookings.rules.maxDuration")
    history = json.loads(out)
    assert [(each["by"], each["reason"], each["changes"]) for each in history] == [
        (who, "", ["bookings.rules.maxDuration: 7d → 14d"]),
        (who, "a deadline", ["bookings.rules.maxDuration: 14d → 7d"]),
        ("the installation", "", ["the first one"]),
    ]
    assert table.splitlines()[0].split() == ["WHEN", "WHO", "WHY", "WHAT"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(
            ("memory.unit", "GiB"), 3, "--set config.memory.unit=GiB", id="a field of the installation, with its value"
        ),
        pytest.param(("tiers.victim", "fair"), 2, "Did you mean tiers.victims?", id="a typing error"),
        pytest.param(("tiers", "fair"), 2, "tiers is a section", id="a section"),
        pytest.param(("tiers.victims", "nobody"), 2, "expected fair or random", id="a wrong value"),
        pytest.param(("tiers.victims", "null"), 2, "expected fair or random", id="no value"),
        pytest.param(
            ("bookings.rules.minDuration", "30d"), 2, "which maxDuration 14 d does not allow", id="a contradiction"
        ),
    ],
)
async def test_what_cannot_be_set_is_refused_and_nothing_is_written(
    words: tuple[str, str], code: int, said: str
) -> None:
    async with a_configured_lab() as (lab, url):
        got, out, err = await config(url, "set", *words, "--reason", "why not")
        assert await find(lab.client, CHANGES, OURS) is None
    assert (got, out) == (code, "")
    assert said in err


async def test_fields_that_this_version_does_not_know_are_taken_back_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another version of Carrel knew them. Without it, everybody would wait for somebody with kubectl."""
    monkeypatch.setattr(configuration_change, "OLD_REFUSAL_S", 0.0)
    async with a_configured_lab() as (lab, url), deciding(lab):
        await change(lab, "tiers: {fieldOfBefore: 1, another: 2, victims: fair}")
        first = await config(url, "reset", "tiers.fieldOfBefore")
        second = await config(url, "reset", "tiers.another")
        unknown = await config(url, "reset", "tiers.third")
        in_force = (await recorded(lab)).configuration()
    assert first[0] == 3 and "tiers.another is no field" in first[2] and "fieldOfBefore" not in first[2]
    assert second[:2] == (0, f"tiers.another is gone now: {RECORDED}\n")
    assert unknown[0] == 2 and "'tiers.third' is no field" in unknown[2]
    assert in_force.tiers.victims.value == "fair"


async def test_what_people_changed_and_nobody_can_read_is_not_overwritten() -> None:
    async with a_configured_lab() as (lab, url):
        await change(lab, "tiers: [")
        code, _, err = await config(url, "set", "tiers.victims", "fair", "--reason", "x")
        there = await find(lab.client, CHANGES, OURS)
    assert code == 3 and "kubectl --namespace carrel edit configmap carrel-changes" in err
    assert there is not None and there.data["carrel.yaml"] == "tiers: ["


async def test_a_reason_is_needed() -> None:
    async with a_configured_lab() as (_, url):
        code, _, err = await config(url, "set", "tiers.victims", "fair")
    assert code == 2 and "No reason was given" in err


async def test_of_two_admins_at_once_the_second_sees_what_the_first_changed_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_configured_lab() as (lab, url):
        await change(lab, "tiers: {victims: fair}")
        loop = asyncio.get_running_loop()

        async def asks_late(client: object) -> str:
            """Between reading and writing, ada was faster."""
            faster = change(lab, "tiers: {victims: fair, minimumTime: 5m}", "ada", "fairness")
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(faster, loop))
            return "bob"

        monkeypatch.setattr(configuration_change, "whoami", asks_late)
        code, _, err = await config(url, "set", "bookings.rules.maxGpus", "1", "--reason", "too few GPUs")
        there = await find(lab.client, CHANGES, OURS)
    assert code == 5
    assert err.splitlines()[:3] == [
        "✗ Nothing of yours is written",
        "  ada changed it at the same time (fairness):",
        "  tiers.minimumTime: not set → 5m",
    ]
    assert there is not None and there.data["carrel.yaml"] == "tiers: {victims: fair, minimumTime: 5m}"


async def test_without_a_controller_set_says_that_it_is_not_in_force_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration_change, "WAIT_S", 0.3)
    async with a_configured_lab() as (lab, url):
        code, out, err = await config(url, "set", "tiers.victims", "fair", "--reason", "x")
        assert await find(lab.client, CHANGES, OURS) is not None
    assert (code, out) == (6, "")
    assert "It is written, but not in force yet" in err


async def test_a_change_beside_an_object_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration_change, "OLD_REFUSAL_S", 0.3)
    async with a_configured_lab("{}") as (lab, url):
        async with lab.replica() as replica:
            await replica.bind(await lab.pod("train", limits={"nvidia.com/gpu": "1"}), "n1")
        await configure(lab.client, "memory: {unit: GiB}")
        async with deciding(lab):
            code, _, err = await config(url, "set", "tiers.victims", "random", "--reason", "x")
    assert code == 3
    assert "memory.unit: MiB → GiB: not while GPUs are held" in err


async def test_an_api_server_that_does_not_answer_is_reported() -> None:
    said = await carrel("config", "show", "--server", "http://127.0.0.1:1")
    assert (said.code, said.err.splitlines()[0]) == (6, "✗ No answer from http://127.0.0.1:1")


async def test_a_process_says_the_same() -> None:
    async with a_configured_lab() as (_, url):
        words = ("config", "show", "--all", "--server", url)
        assert await carrel_process(*words) == await carrel(*words)
