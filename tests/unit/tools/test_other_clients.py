"""Clients of others are put into place whole or not at all, and what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import other_clients
from tools.other_clients import OtherClientsError


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(other_clients, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def _bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no program, and nobody may install one."""
    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setattr(other_clients, "may_install_packages", lambda: False)


@pytest.mark.usefixtures("_bare_machine", "cache")
def test_what_is_missing_is_named_with_its_package() -> None:
    with pytest.raises(OtherClientsError, match="apt-get install nodejs npm"):
        other_clients.find_node()
    with pytest.raises(OtherClientsError, match="apt-get install nodejs npm"):
        other_clients.ensure_kafkajs()
    with pytest.raises(OtherClientsError, match="apt-get install golang-go"):
        other_clients.ensure_go_clients()


@pytest.mark.usefixtures("_bare_machine")
def test_nothing_is_left_of_what_could_not_be_made(cache: Path) -> None:
    with pytest.raises(OtherClientsError):
        other_clients.ensure_go_clients()
    assert [path.name for path in cache.iterdir()] == [".gitignore"]


def test_what_is_there_is_not_made_again(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    made = []

    def run(command: list[str]) -> str:
        made.append(command)
        return ""

    monkeypatch.setattr(other_clients, "_run", run)
    first, second = other_clients.ensure_kafka_python(), other_clients.ensure_kafka_python()
    assert (first, first.is_dir(), len(made)) == (second, True, 1)


def test_another_package_than_was_meant_is_refused(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    def run(command: list[str]) -> str:
        place = Path(command[command.index("--pack-destination") + 1])
        (place / "kafkajs.tgz").write_bytes(b"something else")
        return ""

    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr(other_clients, "_run", run)
    with pytest.raises(OtherClientsError, match="which should be"):
        other_clients.ensure_kafkajs()
    assert [path.name for path in cache.iterdir()] == [".gitignore"]


def test_an_old_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr(other_clients, "_run", lambda command: "v12.22.12\n")
    with pytest.raises(OtherClientsError, match=r"needs Node\.js 16 or later"):
        other_clients.find_node()
