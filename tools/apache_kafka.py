"""A real Apache Kafka broker on loopback, for tests: one node that is broker and controller.

    with ApacheKafka(ensure_kafka_jars(), tmp_path) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

The broker answers when the block is entered and its process is gone when the block is left.
Entering again with the same `data_dir` starts again on the same logs.
"""

from __future__ import annotations

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tools.java import OLDEST_USABLE, find_java

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05


class KafkaStartError(RuntimeError):
    """The broker could not be formatted or started; the message ends with what it printed."""


class ApacheKafka:
    """Starts the broker on entry, stops it on exit. `properties` override server.properties."""

    def __init__(
        self, jars: Path, data_dir: Path, *, properties: Mapping[str, str] | None = None
    ) -> None:
        self._jars = jars
        self._config = data_dir / "server.properties"
        self._output = data_dir / "broker.out"
        self._properties = properties or {}
        self._process: subprocess.Popen[bytes] | None = None
        self.log_dir: Final = data_dir / "logs"
        self.bootstrap = ""

    def __enter__(self) -> Self:
        java = find_java()
        if java is None:
            raise KafkaStartError(
                f"Apache Kafka needs Java {OLDEST_USABLE} or later: install a JDK, "
                "or name its java program in ONCEFLOW_JAVA"
            )
        command = [str(java), "-Xms512m", "-Xmx512m", "-cp", f"{self._jars}/*"]
        port, controller_port = _free_ports(2)
        self._write_config(port, controller_port)
        if not (self.log_dir / "meta.properties").exists():
            self._format(command)
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, "kafka.Kafka", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_it_listens(self._process, port)
        except BaseException:
            self._stop()
            raise
        self.bootstrap = f"127.0.0.1:{port}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _write_config(self, port: int, controller_port: int) -> None:
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._properties,
        }
        self._config.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={value}\n" for name, value in properties.items()]
        self._config.write_text("".join(lines), encoding="utf-8")

    def _format(self, command: list[str]) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        storage_tool = [*command, "kafka.tools.StorageTool", "format"]
        done = subprocess.run(
            # One word: an id may start with "-", and would be taken for an option.
            [*storage_tool, f"--cluster-id={cluster_id}", "--config", str(self._config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise KafkaStartError(f"cannot format {self.log_dir}:\n{done.stdout[-2000:]}")

    def _wait_until_it_listens(self, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=POLL_SECONDS).close()
            except OSError:
                pass
            else:
                return
            try:
                status = process.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise KafkaStartError(f"the broker ended with status {status}:\n{self._said()}")
        raise KafkaStartError(
            f"port {port} is not open after {START_SECONDS:.0f} s:\n{self._said()}"
        )

    def _said(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")[-2000:]

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; all are held until the last is drawn, so they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports
