"""The files of a checkpoint, wherever Spark keeps them: through Hadoop's file systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from onceflow.spark.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL: Final = "file:"


class CheckpointUnwritable(SinkError):
    """A file cannot be put into the checkpoint."""


def qualified(session: SparkSession, directory: str) -> str:
    """The directory of a checkpoint as Spark names it: with its scheme, from the root on."""
    jvm: Any = session.sparkContext._jvm
    state: Any = session._jsparkSession
    path = jvm.org.apache.hadoop.fs.Path(directory)
    return str(path.getFileSystem(state.sessionState().newHadoopConf()).makeQualified(path))


class CheckpointFiles:
    """Those of one query."""

    def __init__(self, session: SparkSession, root: str) -> None:
        self._root = root
        self._jvm: Any = session.sparkContext._jvm
        state: Any = session._jsparkSession
        self._conf = state.sessionState().newHadoopConf()
        self._local = _local_path(root)

    def read(self, name: str) -> str | None:
        if self._local is not None:
            # The driver's Python and its JVM have the same disks, and this is ten times faster.
            try:
                return (self._local / name).read_text(encoding="utf-8")
            except FileNotFoundError:
                return None
        path = self._path(name)
        system = path.getFileSystem(self._conf)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self, prefix: str) -> list[str]:
        if self._local is not None:
            return sorted(path.name for path in self._local.glob(f"{prefix}*"))
        directory = self._jvm.org.apache.hadoop.fs.Path(self._root)
        statuses = directory.getFileSystem(self._conf).listStatus(directory)
        names = (str(each.getPath().getName()) for each in statuses)
        return sorted(name for name in names if name.startswith(prefix))

    def create(self, name: str, text: str) -> None:
        path, aside = self._path(name), self._path(f".{name}.{uuid4().hex}")
        system = path.getFileSystem(self._conf)
        stream = system.create(aside, False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if not system.rename(aside, path):
            system.delete(aside, False)
            raise CheckpointUnwritable(
                f"{path.toString()} cannot be written: another driver on the same checkpoint is "
                "doing so, or the file system does not allow it"
            )

    def delete(self, name: str) -> None:
        path = self._path(name)
        path.getFileSystem(self._conf).delete(path, False)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}")


def _local_path(root: str) -> Path | None:
    if not root.startswith(_LOCAL):
        return None
    return Path("/" + root.removeprefix(_LOCAL).lstrip("/"))
