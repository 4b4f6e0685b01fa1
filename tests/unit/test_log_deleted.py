"""A deleted log gives its room and its descriptors back, whoever still knows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.log.config import LogConfig
from onceflow.log.store import LogStore, StoreConfig
from onceflow.records.batch import iter_stored
from onceflow.runtime.background import Inline
from onceflow.runtime.disk import RealDisk
from tests.unit.log_helpers import RAND, append, log_id, new_batch


def open_below(directory: Path) -> list[str]:
    """The files in a directory that this process holds open, gone ones too."""
    targets = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if is_open(each)]
    return [each for each in targets if each.startswith(str(directory)) and ".log" in each]


def is_open(descriptor: Path) -> bool:
    return descriptor.is_symlink()  # that of the listing itself is gone


@pytest.mark.parametrize("segments", [1, 4])
def test_no_file_of_a_deleted_log_stays_open(tmp_path: Path, segments: int) -> None:
    config = StoreConfig(log=LogConfig(segment_bytes=500))
    store = LogStore.open(RealDisk(tmp_path), Inline(), RAND, config)
    store.create("orders", [log_id(1)])
    log = store.logs[log_id(1)]  # as a broker's partition keeps it, and is kept by others
    for _ in range(3 * segments):
        append(store, log, new_batch())
    assert len(log.segments) == segments
    for segment in log.segments:
        assert segment.file.pread(0, 10)
    reader = log.read(0, 1000)
    store.delete([log])
    store.request_checkpoint()
    assert not list(tmp_path.glob("orders*"))
    assert [batch.header.base_offset for batch in iter_stored(reader.read())][:1] == [0]
    assert len(open_below(tmp_path)) == 1  # that of the reader
    del reader
    assert open_below(tmp_path) == []
    store.close()
