"""Compiled kernels are kept on disk, but never for other sources than those they came from; and
where they cannot be kept, the broker serves all the same."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numba.core import config as numba_config
from numba.core.caching import NullCache
from numba.core.registry import cpu_target

from onceflow.records import kernel_cache, kernels, write_kernels
from onceflow.records.raw_memory import kernel
from onceflow.runtime.compiling.cache import private_directory

ROOT = Path(__file__).resolve().parents[3]
PR_CAPBSET_DROP = 24
ABOVE_PERMISSIONS = (1, 2)
"""The capabilities by which root reads and writes what its permissions forbid."""


@pytest.mark.parametrize("kernel", [kernels.walk, kernels.fill, write_kernels.write])
def test_a_change_of_the_helpers_misses_the_cache(
    kernel: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = kernel._cache  # type: ignore[attr-defined]  # of numba's dispatcher
    codegen = cpu_target.target_context.codegen()
    key = cache._index_key((), codegen)
    assert key == cache._index_key((), codegen)
    monkeypatch.setattr(kernel_cache, "_compiled_in", lambda: "of other helpers")
    assert key != cache._index_key((), codegen)


def doubled(number: int) -> int:
    return 2 * number


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """numba's cache is a directory of this test; nothing was said yet."""
    monkeypatch.setattr(numba_config, "CACHE_DIR", str(tmp_path / "numba"))
    monkeypatch.setattr(kernel_cache, "_said", set())
    private_directory.cache_clear()
    yield tmp_path
    private_directory.cache_clear()


def compiled() -> Any:
    return kernel("int64(int64)")(doubled)


def hits(function: Any) -> int:
    return sum(function.stats.cache_hits.values())


def test_compiled_code_is_found_again(places: Path) -> None:
    assert hits(compiled()) == 0
    again = compiled()
    assert hits(again) == 1
    assert again(21) == 42


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("contents", [b"", b"\0\1\2", b"cno.such\nmodule\n."])
def test_damaged_files_are_made_anew(
    places: Path, ending: str, contents: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    compiled()
    (damaged,) = places.glob(f"numba/*/*{ending}")
    damaged.write_bytes(contents)
    assert compiled()(21) == 42
    assert "compiled code cannot be read" in caplog.text
    assert hits(compiled()) == 1, "and this time it is kept"


def test_a_full_disk_keeps_nothing_and_stops_nobody(
    places: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    for _ in range(2):
        found = compiled()
        assert (hits(found), found(21)) == (0, 42)
    assert caplog.text.count("compiled code cannot be kept") == 1


def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of numba's places can be written."""
    names = ("UserProvidedCacheLocator", "InTreeCacheLocator", "UserWideCacheLocator")
    for name in names:
        locator = f"numba.core.caching.{name}.ensure_cache_path"
        monkeypatch.setattr(locator, refused, raising=False)
    monkeypatch.setattr(kernel_cache._PrivateLocator, "ensure_cache_path", made, raising=False)


def refused(_: object) -> None:
    raise PermissionError(13, "Permission denied")


def made(locator: Any) -> None:
    Path(locator.get_cache_path()).mkdir(parents=True, exist_ok=True)


def test_where_nothing_else_can_be_written_a_private_directory_is(
    places: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    nowhere(monkeypatch)
    with caplog.at_level(logging.INFO):
        assert hits(compiled()) == 0
        assert hits(compiled()) == 1
    (kept,) = places.glob("onceflow-compiled-*")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert caplog.text.count(f"compiled code is kept in {kept}") == 1


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def link_of_somebody(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.with_name("elsewhere"))


def plain_file(path: Path) -> None:
    path.touch(mode=0o700)


@pytest.mark.parametrize("plant", [open_to_others, link_of_somebody, plain_file])
def test_a_directory_that_others_may_have_filled_is_not_trusted(
    places: Path, plant: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    plant(places / f"onceflow-compiled-{os.getuid()}")
    nowhere(monkeypatch)
    assert private_directory() is None
    for _ in range(2):
        found = compiled()
        assert isinstance(found._cache, NullCache)
        assert found(21) == 42
    assert caplog.text.count("code is compiled anew at every start") == 1


# --- a broker that owns nothing ------------------------------------------------------------------

CHILD = """
import asyncio, logging, sys
from pathlib import Path

logging.basicConfig(level=logging.INFO, stream=sys.stdout)

from onceflow.records.plain import PlainRecord, write_records
from onceflow.runtime.compiling.compiling import at_import
from tests.unit.broker import broker_under_test
from tests.unit.broker.broker_under_test import broker, run, values_in

broker_under_test.SECONDS = 200.0  # compiling takes its time
at_import.set()

async def main():
    async with broker(Path(sys.argv[1])) as running:
        client = await running.client()
        await client.create("orders")
        batch = write_records([PlainRecord(b"k", b"v")], 1_700_000_000_000)
        answer = await client.produce("orders", bytes(batch.buffer))
        found = values_in((await client.fetch("orders"))["records"])
        print("ANSWER", answer["error_code"], found)

run(main)
"""


def without_power_over_permissions() -> None:
    """In the child, before it becomes Python: permissions count for root too."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in ABOVE_PERMISSIONS:
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def served(tmp_path: Path, sources: Path, temporary: Path) -> str:
    """What a broker says that can write its data, its temporary directory and nothing else."""
    data = tmp_path / f"data-{len(list(tmp_path.iterdir()))}"
    data.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(temporary),
        "PYTHONPATH": f"{sources}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(data)],
        cwd=tmp_path / "empty",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=without_power_over_permissions,
    )
    return done.stdout + done.stderr


def sealed(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        each.chmod(0o555 if each.is_dir() else 0o444)


@pytest.mark.long  # compiles everything
def test_a_broker_that_can_write_neither_sources_nor_home_serves_produce(tmp_path: Path) -> None:
    sources, temporary = tmp_path / "src", tmp_path / "tmp"
    shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
    sealed(sources)
    for name, mode in (("home", 0o000), ("empty", 0o555), ("tmp", 0o755)):
        (tmp_path / name).mkdir(mode=mode)
    try:
        for _ in range(2):
            said = served(tmp_path, sources, temporary)
            assert "ANSWER NONE [(0, b'v')]" in said, said
            assert said.count("compiled code is kept in") == 1
        kept = list(temporary.glob("onceflow-compiled-*/*/*.nbc"))
        assert any("walk" in each.name for each in kept)
    finally:
        for each in (sources, *(each for each in sources.rglob("*") if each.is_dir())):
            each.chmod(0o755)
        (tmp_path / "home").chmod(0o755)
