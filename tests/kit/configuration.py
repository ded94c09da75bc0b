"""The configuration of a cluster in tests: an object in the API, or a file."""

import asyncio
from pathlib import Path

from carrel.cluster.configuration_record import APPLIED, GIVEN, TEXT, body_of, find
from carrel.kubernetes.client import Client
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from tests.kit.eventually import LIMIT_S

OURS = "carrel"


async def configure(client: Client, text: str = "{}", name: str = GIVEN, **notes: str) -> None:
    """Give the cluster this configuration, as the chart does; or write another of its objects, with annotations."""
    body = body_of(name, OURS, {TEXT: text})
    body["metadata"]["annotations"] = {f"carrel.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
    if await find(client, name, OURS) is None:
        await client.create(CONFIG_MAPS, body, OURS)
    else:
        await client.update(CONFIG_MAPS, body)


async def wait_recorded(client: Client) -> None:
    """Wait until a controller has decided for the first time."""
    async with asyncio.timeout(LIMIT_S):
        while await find(client, APPLIED, OURS) is None:  # noqa: ASYNC110 # it can only be polled
            await asyncio.sleep(0.01)


def config_file(folder: Path, text: str = "{}") -> str:
    """Return the path of a file with this configuration."""
    file = folder / "carrel.yaml"
    file.write_text(text)
    return str(file)
