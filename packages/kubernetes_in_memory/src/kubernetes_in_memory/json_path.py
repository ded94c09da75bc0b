r"""The part of Kubernetes' JSONPath that printer columns use.

    .a.b   ['a']   .name\.with\.dots   [0]   [*]   [?(@.type=="Ready")]

Pure. What is not found gives nothing; a path outside this part finds nothing either, and its column stays empty.
"""

import re
from dataclasses import dataclass
from typing import Any

_STEP = re.compile(
    r"""\.?(?:
        (?P<name>(?:[\w-]|\\.)+)
      | \[\s*'(?P<quoted>[^']*)'\s*\]
      | \[\s*(?P<index>-?\d+)\s*\]
      | (?P<all>\[\*\])
      | \[\?\(\s*@\.(?P<field>[\w.-]+)\s*==\s*["'](?P<value>[^"']*)["']\s*\)\]
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class JsonPath:
    steps: tuple[dict[str, str], ...] | None
    """None: not understood."""

    @classmethod
    def parse(cls, text: str) -> "JsonPath":
        text = text.strip().removeprefix("{").removesuffix("}").removeprefix("$")
        steps = []
        at = 0
        while at < len(text):
            found = _STEP.match(text, at)
            if found is None:
                return cls(None)
            steps.append({key: value for key, value in found.groupdict().items() if value is not None})
            at = found.end()
        return cls(tuple(steps))

    def find(self, tree: Any) -> list[Any]:
        if self.steps is None:
            return []
        found = [tree]
        for step in self.steps:
            found = [after for value in found for after in _walk(value, step)]
        return found

    @staticmethod
    def text(found: list[Any]) -> str:
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in found)


def _walk(value: Any, step: dict[str, str]) -> list[Any]:
    if "name" in step or "quoted" in step:
        name = step["quoted"] if "quoted" in step else re.sub(r"\\(.)", r"\1", step["name"])
        return [value[name]] if isinstance(value, dict) and value.get(name) is not None else []
    if "all" in step and isinstance(value, dict):
        return list(value.values())
    if not isinstance(value, list):
        return []
    if "all" in step:
        return value
    if "index" in step:
        index = int(step["index"])
        return [value[index]] if -len(value) <= index < len(value) else []
    path = JsonPath.parse(f".{step['field']}")
    return [one for one in value if path.text(path.find(one)) == step["value"]]
