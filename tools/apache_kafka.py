"""A real Apache Kafka on loopback, for tests: one node, or three that fail over to each other.

    with ApacheKafka(ensure_kafka_jars(), tmp_path) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

    with ApacheKafkaCluster(ensure_kafka_jars(), tmp_path) as cluster:
        cluster.kill(2)
        cluster.restart(2)

Every node is broker and controller. All of them answer when the block is entered and their
processes are gone when the block is left. Entering again with the same `data_dir` starts again on
the same logs.
"""

from __future__ import annotations

import base64
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from tools.java import OLDEST_USABLE, find_java

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05
HOST: Final = "127.0.0.1"
NODE_IDS: Final = (1, 2, 3)
NEVER_GIVEN_AWAY: Final = range(20_000, 32_000)
QUICK_TO_START: Final = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For nodes that live for minutes: compiled once, and not too well."""


class KafkaStartError(RuntimeError):
    """The broker could not be formatted or started; the message ends with what it printed."""


class Ports(NamedTuple):
    """Where a node listens."""

    broker: int
    controller: int


class ApacheKafka:
    """Starts the broker on entry, stops it on exit. `properties` override server.properties; a node
    that is to come back where it was is told its `ports`."""

    def __init__(
        self,
        jars: Path,
        data_dir: Path,
        *,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = ("-Xms512m", "-Xmx512m"),
        ports: Ports | None = None,
    ) -> None:
        self._jars = jars
        self._java_options = java_options
        self._config = data_dir / "server.properties"
        self._output = data_dir / "broker.out"
        self._properties = properties or {}
        self._ports = ports
        self._process: subprocess.Popen[bytes] | None = None
        self.log_dir: Final = data_dir / "logs"
        self.bootstrap = ""

    def __enter__(self) -> Self:
        ports = self.prepare()
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_it_listens(self._process, ports.broker)
        except BaseException:
            self._stop()
            raise
        self.bootstrap = f"{HOST}:{ports.broker}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def kill(self) -> None:
        """kill -9; returns when the process is gone. Entering again brings it back."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def prepare(self) -> Ports:
        """All that is to be done before it starts; entering it does so, too."""
        ports = self._ports or Ports(*free_ports(2))
        self._write_config(*ports)
        if not self._identity.exists():
            self._format()
        return ports

    def prepare_like(self, other: ApacheKafka, node_id: int) -> None:
        """Formats it as another node of the cluster of one that is prepared: by a copy, in which
        only names differ. The tool for it takes as long as a start."""
        if self._identity.exists():
            return
        shutil.copytree(other.log_dir, self.log_dir)
        own = {"node.id": str(node_id), "directory.id": _random_id()}
        text = self._identity.read_text(encoding="utf-8")
        for name, value in own.items():
            text = re.sub(rf"(?m)^{re.escape(name)}=.*$", f"{name}={value}", text)
        self._identity.write_text(text, encoding="utf-8")

    def freeze(self) -> None:
        """From now on it takes requests and does not answer; what ends that is `kill`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def _write_config(self, port: int, controller_port: int) -> None:
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
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

    @property
    def _identity(self) -> Path:
        return self.log_dir / "meta.properties"

    def _java(self) -> list[str]:
        java = find_java()
        if java is None:
            raise KafkaStartError(
                f"Apache Kafka needs Java {OLDEST_USABLE} or later: install a JDK, "
                "or name its java program in ONCEFLOW_JAVA"
            )
        return [str(java), *self._java_options, "-cp", f"{self._jars}/*"]

    def _format(self) -> None:
        storage_tool = [*self._java(), "kafka.tools.StorageTool", "format"]
        done = subprocess.run(
            # One word: an id may start with "-", and would be taken for an option.
            [*storage_tool, f"--cluster-id={_random_id()}", "--config", str(self._config)],
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
                socket.create_connection((HOST, port), timeout=POLL_SECONDS).close()
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


class ApacheKafkaCluster:
    """Three nodes. Every topic has a replica on each of them, of which two have to have a record
    before it is acknowledged: any one node may be killed, and comes back where it was."""

    def __init__(
        self,
        jars: Path,
        data_dir: Path,
        *,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = QUICK_TO_START,
    ) -> None:
        drawn = free_ports(2 * len(NODE_IDS))
        ports = {
            node_id: Ports(*drawn[2 * place : 2 * place + 2])
            for place, node_id in enumerate(NODE_IDS)
        }
        shared = {
            "controller.quorum.voters": ",".join(
                f"{node_id}@{HOST}:{each.controller}" for node_id, each in ports.items()
            ),
            **_REPLICATED,
            **(properties or {}),
        }
        self._nodes = {
            node_id: ApacheKafka(
                jars,
                data_dir / f"node-{node_id}",
                properties={"node.id": str(node_id), **shared},
                java_options=java_options,
                ports=each,
            )
            for node_id, each in ports.items()
        }
        self.addresses: Final[Mapping[int, str]] = {
            node_id: f"{HOST}:{each.broker}" for node_id, each in ports.items()
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def __enter__(self) -> Self:
        model = self._nodes[NODE_IDS[0]]
        model.prepare()
        for node_id in NODE_IDS[1:]:
            self._nodes[node_id].prepare_like(model, node_id)
        try:
            with ThreadPoolExecutor(len(self._nodes)) as pool:
                # Together: none is ready before most of them are there.
                list(pool.map(ApacheKafka.__enter__, self._nodes.values()))
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._kill_all()

    def kill(self, node_id: int) -> None:
        """kill -9; returns when the process is gone."""
        self._nodes[node_id].kill()

    def freeze(self, node_id: int) -> None:
        """It takes requests and does not answer, until it is killed."""
        self._nodes[node_id].freeze()

    def restart(self, node_id: int) -> None:
        """After `kill`; returns when the node answers again."""
        self._nodes[node_id].__enter__()

    def _kill_all(self) -> None:
        # In peace they would wait for each other, the last one for nobody who comes.
        for node in self._nodes.values():
            node.kill()


_REPLICATED: Final[Mapping[str, str]] = {
    "default.replication.factor": str(len(NODE_IDS)),
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(len(NODE_IDS)),
    "transaction.state.log.replication.factor": str(len(NODE_IDS)),
    "transaction.state.log.min.isr": "2",
}


def _random_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def free_ports(count: int) -> list[int]:
    """Ports that no system gives to clients by itself, none of them twice: a port that is free now
    must still be when a node has started, and while one is away. With many tries a client can even
    be connected to itself there."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(NEVER_GIVEN_AWAY)
        if port in _GIVEN:
            continue
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            continue
        _GIVEN.add(port)
        found.append(port)
    return found


_GIVEN: Final[set[int]] = set()
