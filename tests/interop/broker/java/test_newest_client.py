"""What the newest Apache Kafka client can speak, as its jar says: whoever adds an API or a version
there makes this fail, until it is served here or stands among the knowing differences."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from onceflow.broker.router import SERVED
from onceflow.wire.api import FLEXIBLE_FROM, NEVER, ApiKey
from onceflow.wire.error_codes import ErrorCode
from tools.java import find_java
from tools.kafka_jars import CLIENT_VERSION, classpath_of_newest_client, newest_client

pytestmark = pytest.mark.interop

DOCUMENT: Final = Path(__file__).resolve().parents[4] / "docs" / "APIS.md"
NOT_SERVED: Final = frozenset(
    {
        *(17, 29, 30, 31, 36, 38, 39, 40, 41, 48, 49, 50, 51),  # security
        34,  # moving replicas between directories
        *(68, 69, *range(76, 80), *range(83, 94)),  # the newer group protocols
        *(71, 72),  # telemetry
        *(64, 80, 81, 94),  # brokers and controllers that come and go
    }
)
"""Of what clients may ask a broker for."""
OTHER_RANGES: Final = {
    ApiKey.OFFSET_COMMIT: ((2, 10), (2, 9)),  # topic ids
    ApiKey.OFFSET_FETCH: ((1, 10), (1, 9)),  # topic ids
}
"""What the client speaks, and what is served."""


class Spec(NamedTuple):
    """A request, as the jar specifies it."""

    lowest: int
    highest: int
    flexible_from: int
    is_for_brokers: bool


def read_specs(jar: Path) -> dict[int, Spec]:
    """By API key: all requests that there are."""
    found = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"common/message/\w+Request\.json", name):
                spec = _parse(archive.read(name).decode())
                if spec["type"] == "request" and spec["validVersions"] != "none":
                    found[spec["apiKey"]] = _spec(spec)
    return found


def _parse(text: str) -> Any:
    """The specifications have comments, which JSON has not."""
    return json.loads(re.sub(r"^\s*//.*$|(?<=[,\[{}\]\"])\s*//.*$", "", text, flags=re.MULTILINE))


def _spec(spec: dict[str, Any]) -> Spec:
    lowest, _, highest = spec["validVersions"].partition("-")
    first = spec["flexibleVersions"].removesuffix("+")
    return Spec(
        int(lowest),
        int(highest or lowest),
        NEVER if first == "none" else int(first.partition("-")[0]),
        "broker" in spec["listeners"],
    )


@pytest.fixture(scope="module")
def specs(kafka_jars: Path) -> dict[int, Spec]:
    return read_specs(newest_client())


def test_every_api_is_served_or_knowingly_not(specs: dict[int, Spec]) -> None:
    asked = {key for key, spec in specs.items() if spec.is_for_brokers}
    assert len(asked) > 70, "the jar's specifications were not found"
    assert asked - set(map(int, SERVED)) == NOT_SERVED


def test_every_version_is_served_or_knowingly_not(specs: dict[int, Spec]) -> None:
    differences = {
        key: (specs[key][:2], tuple(served))
        for key, served in SERVED.items()
        if specs[key][:2] != tuple(served)
    }
    assert differences == OTHER_RANGES


def test_messages_turn_flexible_where_the_specification_says(specs: dict[int, Spec]) -> None:
    for key, first in FLEXIBLE_FROM.items():
        spec = specs[key]
        assert [version >= first for version in range(spec.lowest, spec.highest + 1)] == [
            version >= spec.flexible_from for version in range(spec.lowest, spec.highest + 1)
        ], key.name


def test_the_documentation_names_every_knowing_difference() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.partition("## Not served")[2].partition("\n## ")[0]
    told: set[int] = set()
    cells = " ".join(re.findall(r"\|([\d, -]+)\|", section))
    for low, high in re.findall(r"\b(\d+)(?:-(\d+))?", cells):
        told.update(range(int(low), int(high or low) + 1))
    assert told >= NOT_SERVED
    assert not told & set(map(int, SERVED))
    for key, (speaks, served) in OTHER_RANGES.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {int(key)} |"))
        assert f"not {speaks[1]}" in row, f"{key.name} is served up to {served[1]}"


def test_every_error_code_has_its_name(kafka_jars: Path, tmp_path: Path) -> None:
    """The jar has them in a class, which only Java can read."""
    program = tmp_path / "Codes.java"
    program.write_text(
        "public class Codes { public static void main(String[] none) {"
        " for (var each : org.apache.kafka.common.protocol.Errors.values())"
        ' System.out.println(each.code() + " " + each.name()); } }',
        encoding="utf-8",
    )
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-cp", classpath_of_newest_client()]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, check=True)
    theirs = dict(line.split() for line in done.stdout.splitlines())
    assert theirs == {str(int(each)): each.name for each in ErrorCode}, CLIENT_VERSION
