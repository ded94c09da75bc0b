"""The configuration's file: everything that is wrong is said at once, and nothing of such a file is used."""

from datetime import timedelta

import pytest

from carrel.configuration.gpu_memory import Limits
from carrel.configuration.reading import (
    LARGEST,
    LONGEST_SAID,
    MOST_SAID,
    Unusable,
    as_text,
    content_of,
    every_field,
    nearest,
    plain,
    read,
    typed,
    with_value,
    written,
)
from carrel.configuration.schema import Configuration, Hubs, Tiers, Victims


def mistakes(text: str, changes: str = "") -> list[str]:
    with pytest.raises(Unusable) as refused:
        read(text, changes)
    return refused.value.mistakes


def test_a_file_says_what_differs_from_the_defaults() -> None:
    made = read("tiers: {victims: random, minimumTime: 90s}\nhubs: {users: {ada: ada.lovelace@lab.example}}")
    assert made == Configuration(
        tiers=Tiers(victims=Victims.RANDOM, minimum_time=timedelta(seconds=90)),
        hubs=Hubs(users={"ada": "ada.lovelace@lab.example"}),
    )
    assert read("{}") == Configuration()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("tiers: {victim: fair}", ["tiers.victim is no field; did you mean victims?"], id="the nearest"),
        pytest.param("tiers: {Victims: fair}", ["tiers.Victims is no field; did you mean victims?"], id="capitals"),
        pytest.param("bookings: {rule: {}}", ["bookings.rule is no field; did you mean rules?"], id="a section"),
        pytest.param(
            "resourceClaims: {zebra: 1}",
            ["resourceClaims.zebra is no field; there are enabled, driver"],
            id="nothing is near",
        ),
        pytest.param("1: {}", None, id="a number as a key"),
        pytest.param(
            "memory: {unit: KiB, resource: none}",
            [
                "memory.unit is 'KiB'; expected MiB or 2MiB or 4MiB or 8MiB or 16MiB or 32MiB or 64MiB or 128MiB or"
                " 256MiB or 512MiB or GiB",
                "memory.resource is 'none'; expected auto or plugin or node",
            ],
            id="two at once",
        ),
        pytest.param("memory: null", ["memory is 'None'; expected a section with fields"], id="an empty section"),
        pytest.param("memory: [unit]", ["memory is \"['unit']\"; expected a section with fields"], id="a list"),
        pytest.param("pods: {strict: 1}", ["pods.strict is '1'; expected true or false"], id="1 is not true"),
        pytest.param("pods: {strict: 'true'}", ["pods.strict is 'true'; expected true or false"], id="a word"),
        pytest.param(
            "pods: {schedulers: mine}",
            ["pods.schedulers is 'mine'; expected a list of words such as [gpu-scheduler, default-scheduler]"],
            id="a word for a list",
        ),
        pytest.param(
            "bookings: {rules: {maxGpus: '4'}}",
            ["bookings.rules.maxGpus is '4'; expected a whole number, from 0 to 10000"],
            id="a number in quotes",
        ),
        pytest.param(
            "bookings: {rules: {planned: true}}",
            ["bookings.rules.planned is 'True'; expected a whole number, from 1 to 1000"],
            id="true is no number",
        ),
        pytest.param(
            "bookings: {rules: {maxGpus: -1}}",
            ["bookings.rules.maxGpus is '-1'; expected a whole number, from 0 to 10000"],
            id="too small",
        ),
        pytest.param(
            "hubs: {users: {ada: 1}}",
            ["hubs.users is \"{'ada': 1}\"; expected a word for each name such as {ada: ada.lovelace@lab.example}"],
            id="an address that is none",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named_with_what_was_expected(text: str, said: list[str] | None) -> None:
    assert mistakes(text) == said if said else mistakes(text)


@pytest.mark.parametrize(
    "value", ["10", "10 m", "10min", "-5m", "1.5h", "90", "1d12h", "''", "[10m]", "1:30", "9999999999d"]
)
def test_a_length_of_time_without_a_known_unit_is_refused(value: str) -> None:
    (mistake,) = mistakes(f"tiers: {{minimumTime: {value}}}")
    assert "expected a length of time such as 90s, 10m, 24h or 14d, from 0s to 1d" in mistake


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "bookings: {rules: {minDuration: 30d}}", "minDuration is 30 d, which maxDuration 14 d", id="rules"
        ),
        pytest.param("lab: {timezone: Mars}", "lab.timezone is 'Mars'", id="a zone that does not exist"),
        pytest.param("lab: {timezone: ../../etc/passwd}", "lab.timezone is", id="a zone that is a path"),
        pytest.param("pods: {schedulers: []}", "pods.schedulers is empty", id="no scheduler"),
        pytest.param("nodes: {deviceList: cdi}\nmemory: {resource: node}", "exclude each other", id="memory, devices"),
        pytest.param("hubs: {accounts: [hub]}", "expected system:serviceaccount:NAMESPACE:NAME", id="an account"),
        pytest.param(
            "hubs: {accounts: [any]}\npods: {strict: true}", "pods.strict exclude each other", id="any account"
        ),
        pytest.param("pods: {strict: true}\ntiers: {podsOfNobody: keep}", "exclude each other", id="pods of nobody"),
        pytest.param("hubs: {usernameDomain: a b}", "hubs.usernameDomain is 'a b'", id="a domain"),
        pytest.param("hubs: {users: {ada: nobody}}", "hubs.users.ada is 'nobody'", id="an address"),
        pytest.param("bookings: {roles: {labAdmins: [ada]}}", "bookings.roles.labAdmins has 'ada'", id="an admin"),
        pytest.param("bookings: {roles: {platformAdmins: [ev\u0430@lab.org]}}", "platformAdmins has", id="no person"),
        pytest.param("bookings: {publicUrl: 'ftp://a.b'}", "bookings.publicUrl is", id="a URL"),
        pytest.param("bookings: {publicUrl: 'https://x/?a=b'}", "bookings.publicUrl is", id="a query"),
        pytest.param("bookings: {publicUrl: 'https://x/a/../b'}", "bookings.publicUrl is", id="a path that leads away"),
        pytest.param("bookings: {publicUrl: 'https://x/a\"onload='}", "bookings.publicUrl is", id="a path with quotes"),
        pytest.param(
            "bookings: {signIn: {oidc: {issuer: 'https://login.lab.org', clientId: carrel}}}",
            "signIn.oidc.issuer needs bookings.publicUrl",
            id="nowhere to send people back",
        ),
        pytest.param(
            "bookings: {signIn: {hub: {url: 'https://hub.lab.org'}}}",
            "signIn.hub.url needs bookings.publicUrl",
            id="nowhere to send the hub's users back",
        ),
        pytest.param(
            "bookings: {publicUrl: 'https://x', signIn: {oidc: {issuer: 'http://login.lab.org', clientId: carrel}}}",
            "signIn.oidc.issuer must be https",
            id="a provider that anybody could play",
        ),
        pytest.param("bookings: {signIn: {hub: {url: hub.lab.org}}}", "signIn.hub.url is 'hub.lab.org'", id="a hub"),
        pytest.param("bookings: {signIn: {hub: {apiUrl: 'hub:8081'}}}", "signIn.hub.apiUrl is", id="a hub's API"),
        pytest.param(
            "bookings: {signIn: {oidc: {issuer: 'https://login.lab.example'}}}", "needs clientId", id="no client"
        ),
        pytest.param(
            "bookings: {publicUrl: 'https://a.b', signIn: {hub: {url: 'http://hub.lab.example'}}}",
            "must be https",
            id="a hub without TLS",
        ),
        pytest.param("bookings: {signIn: {trustedProxies: [here]}}", "trustedProxies: 'here'", id="a network"),
        pytest.param("bookings: {publicUrl: 'http://['}", "bookings.publicUrl is 'http://['", id="half a URL"),
        pytest.param("notifications: {webhookUrl: 'https://[::1'}", "notifications.webhookUrl is", id="half a chat"),
        pytest.param(
            "notifications: {webhookUrl: 'https://me:secret@chat.lab.example/x'}",
            "is 'https://…@chat.lab.example/x'; expected https://HOST/PATH, without a password: secrets are never",
            id="a secret",
        ),
        pytest.param("notifications: {webhookUrl: chat}", "notifications.webhookUrl is 'chat'", id="a chat"),
    ],
)
def test_values_that_contradict_each_other_or_mean_nothing_are_refused(text: str, said: str) -> None:
    assert any(said in each for each in mistakes(text)), mistakes(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "carrel.yaml is empty; write {} if you want all defaults", id="empty"),
        pytest.param("# only a comment", "carrel.yaml is empty", id="a comment"),
        pytest.param("just a word", "carrel.yaml is 'just a word'; expected sections", id="a word"),
        pytest.param("[tiers]", "expected sections", id="a list"),
        pytest.param("a: b: c", "carrel.yaml is no YAML", id="no YAML"),
        pytest.param("tiers: {victims: fair\n", "carrel.yaml is no YAML", id="cut off"),
        pytest.param("tiers: {victims: fair, victims: random}", "victims is there twice", id="a key twice"),
        pytest.param("tiers: {}\ntiers: {}", "tiers is there twice", id="a section twice"),
        pytest.param("a: &a {x: 1}\nb: *a", "line 1: anchors and aliases are not read", id="an alias"),
        pytest.param("a: &a [*a]", "anchors and aliases are not read", id="an alias of itself"),
        pytest.param("{? {a: 1} : 2}", "carrel.yaml is no YAML", id="a mapping as a key"),
        pytest.param("--- {}\n--- {}", "carrel.yaml is no YAML", id="two documents"),
        pytest.param(
            "lab: !!python/object/apply:os.system [id]",
            "line 1: tags such as !!str are not read",
            id="a tag that calls",
        ),
        pytest.param("lab: !!python/name:os.system ''", "tags such as !!str", id="a tag of Python"),
        pytest.param("lab: !!bool perhaps", "tags such as !!str", id="a tag that does not fit its value"),
        pytest.param("lab: {timezone: 2026-13-45}", "carrel.yaml is no YAML: month", id="no date"),
        pytest.param("lab: {timezone: !!set {a}}", "tags such as !!str", id="a set"),
        pytest.param(
            f"pods: {{schedulers: [0x{'f' * 9000}]}}", "too long for a number", id="a number that Python fears"
        ),
        pytest.param(f"lab: {{timezone: 1{':10' * 400}.5}}", "too long for a number", id="a number with the base 60"),
        pytest.param("\x00", "carrel.yaml is no YAML", id="a null byte"),
        pytest.param("{" * 120_000, "carrel.yaml, line 1: more than 20 levels are not read", id="open brackets"),
        pytest.param("[" * 120_000 + "]" * 120_000, "more than 20 levels", id="deep lists"),
        pytest.param("a: " + "{a: " * 3000 + "1" + "}" * 3000, "more than 20 levels", id="deep sections"),
        pytest.param("x" * 1024 * 1024, f"1,048,576 bytes; at most {LARGEST:,} are read", id="1 MiB"),
        pytest.param(f"lab: {{timezone: {'å' * 200_000}}}", f"at most {LARGEST:,} are read", id="letters of two bytes"),
        pytest.param("<<: {tiers: {}}", "<< is not read", id="a merge key"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_one_sentence(text: str, said: str) -> None:
    found = mistakes(text)
    assert said in found[0]
    assert all(len(each) < 500 for each in found)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("".join(f"a{each}: 1\n" for each in range(20_000)), id="unknown fields"),
        pytest.param("hubs:\n  users:\n" + "".join(f"    u{n}: u\n" for n in range(9_000)), id="users"),
        pytest.param(f"hubs: {{accounts: [{', '.join(f'x{n:0900}' for n in range(200))}]}}", id="long values"),
    ],
)
def test_of_very_many_mistakes_the_first_are_said_and_how_many_there_are(text: str) -> None:
    """They are written into the record, which has at most a megabyte, and each becomes an Event."""
    found = mistakes(text)
    assert len(found) == MOST_SAID + 1
    assert found[-1].startswith("and ") and found[-1].endswith(" more mistakes")
    assert all(len(each) <= LONGEST_SAID + 1 for each in found)


def test_a_wrong_value_is_shown_shortened_and_without_control_characters() -> None:
    (mistake,) = mistakes(f'memory: {{unit: "\\e[31m{"x" * 500}"}}')
    assert "\x1b" not in mistake and "…" in mistake and len(mistake) < 250


def test_what_people_changed_is_laid_over_it() -> None:
    made = read("bookings: {rules: {maxGpus: 8, planned: 2}}", "bookings: {rules: {maxGpus: 1}}\n")
    assert (made.bookings.rules.max_gpus, made.bookings.rules.planned) == (1, 2)
    assert read("{}", "  \n") == Configuration()


def test_people_change_rules_and_tiers_only_and_mistakes_of_both_are_said_together() -> None:
    found = mistakes("tiers: {atEnd: never}", "hubs: {accounts: [a]}\ntiers: {victims: none, victim: fair}")
    assert found == [
        "tiers.atEnd is 'never'; expected cpu or end or keep",
        "hubs.accounts cannot be changed here, only bookings.rules and tiers: change carrel.yaml",
        "tiers.victim is no field; did you mean victims? (what people changed)",
        "tiers.victims is 'none'; expected fair or random (what people changed)",
    ]


def test_a_mistake_is_said_also_where_people_have_changed_the_field() -> None:
    """Else what people changed could not be taken back."""
    assert mistakes("bookings: {rules: {maxGpus: many}}", "bookings: {rules: {maxGpus: 2}}") == [
        "bookings.rules.maxGpus is 'many'; expected a whole number, from 0 to 10000"
    ]


def test_mistakes_come_in_the_same_order_whoever_reads() -> None:
    """Two controllers must not take turns in telling the same mistakes."""
    text = "".join(f"{name}: 1\n" for name in ("delta", "alpha", "omega", "beta"))
    assert [each.split()[0] for each in mistakes(text)] == ["delta", "alpha", "omega", "beta"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("true", True), ("14d", "14d"), ("[a, b]", ["a", "b"]), ("a: b: c", "a: b: c"), ("fair", "fair")],
)
def test_what_somebody_typed_is_read_as_the_file_would(text: str, value: object) -> None:
    assert typed(text) == value


def test_a_value_is_put_in_replaced_and_taken_out_with_the_sections_that_are_empty_then() -> None:
    one = with_value({}, "bookings.rules.maxGpus", 2)
    two = with_value(one, "bookings.rules.planned", 3)
    assert two == {"bookings": {"rules": {"maxGpus": 2, "planned": 3}}}
    assert with_value(two, "bookings.rules.maxGpus", None) == {"bookings": {"rules": {"planned": 3}}}
    assert with_value(one, "bookings.rules.maxGpus", None) == {}
    assert with_value({}, "bookings.rules.maxGpus", None) == {}
    assert one == {"bookings": {"rules": {"maxGpus": 2}}}, "the old one is not changed"


def test_the_content_of_a_file_is_not_looked_at() -> None:
    assert content_of("") == {} == content_of(" \n")
    assert content_of("tiers: {unknown: 1}") == {"tiers": {"unknown": 1}}
    with pytest.raises(Unusable):
        content_of("[")


def test_a_time_is_written_in_its_largest_whole_unit() -> None:
    lengths = {"0s": 0, "90s": 90, "2m": 120, "90m": 5400, "36h": 129_600, "14d": 1_209_600}
    assert {plain(timedelta(seconds=length)): length for length in lengths.values()} == lengths


def test_the_nearest_word_is_found_whatever_its_capitals_are() -> None:
    assert nearest("BOOKINGS.RULES.MAXGPU", ["bookings.rules.maxGpus", "tiers.victims"]) == "bookings.rules.maxGpus"
    assert nearest("zebra", ["tiers.victims"]) == ""


def test_what_is_written_has_only_what_differs() -> None:
    assert written(Configuration()) == "{}\n"
    assert written(Configuration(tiers=Tiers(victims=Victims.RANDOM))) == "tiers:\n  victims: random\n"
    assert as_text({}) == "{}\n"


def test_every_field_has_a_path_of_its_own() -> None:
    paths = [leaf.path for leaf in every_field(Configuration())]
    assert len(paths) == len(set(paths)) == 63


@pytest.mark.parametrize("word", ["off", "'off'", "false", "no"])
def test_off_may_be_written_without_quotes(word: str) -> None:
    assert read(f"memory: {{limits: {word}}}").memory.limits is Limits.OFF
    with pytest.raises(Unusable, match=r"memory\.capacity is 'False'; expected auto or usable or total"):
        read("memory: {capacity: off}")
