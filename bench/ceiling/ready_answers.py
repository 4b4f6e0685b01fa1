"""A server that does nothing: what is left of a transaction when the broker takes no time.

    python -m bench.ceiling.ready_answers --listen HOST:PORT --upstream HOST:PORT [--sync-file PATH]

It passes requests on to a broker, until it has seen how that answers an AddPartitionsToTxn, a
Produce to that partition and an EndTxn; from then on it answers those itself, with the same bytes.
With a file to sync, each Produce and each EndTxn is answered when a block was written to the disk,
as a broker has to that syncs once for the records and once for their end.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import struct
from typing import Final

import uvloop

PRODUCE, ADD_PARTITIONS, END_TXN = 0, 24, 26
ANSWERED: Final = (PRODUCE, ADD_PARTITIONS, END_TXN)
SYNCED: Final = (PRODUCE, END_TXN)
TOPIC: Final = b"one"
PARTITION: Final = 8
"""Bytes behind the topic's name that hold the number of the partition, in whichever version."""
BLOCK: Final = 4096
SIZE: Final = struct.Struct(">i")
START: Final = struct.Struct(">hhi")
"""Of a request: API key, version, correlation id."""


class Disk:
    """One block, written again and again past all caches."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_DSYNC, 0o600)
        self._block = mmap.mmap(-1, BLOCK)
        self.write()

    def write(self) -> None:
        os.pwrite(self._fd, self._block, 0)


class Answers:
    """What the broker said, by what was asked."""

    def __init__(self, upstream: tuple[str, int], disk: Disk | None) -> None:
        self._upstream = upstream
        self._disk = disk
        self._bodies: dict[bytes, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        back, forth = await asyncio.open_connection(*self._upstream)
        asked: dict[int, bytes] = {}
        returning = asyncio.create_task(self._pass_back(back, writer, asked))
        try:
            while True:
                frame = await read_frame(reader)
                key, _, number = START.unpack_from(frame)
                question = question_in(frame) if key in ANSWERED else b""
                if (body := self._bodies.get(question)) is not None:
                    if self._disk is not None and key in SYNCED:
                        self._disk.write()
                    writer.write(framed(SIZE.pack(number) + body))
                else:
                    asked[number] = question
                    forth.write(framed(frame))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            returning.cancel()
            forth.close()
            writer.close()

    async def _pass_back(
        self, back: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, bytes]
    ) -> None:
        while True:
            frame = await read_frame(back)
            if question := asked.pop(SIZE.unpack_from(frame)[0]):
                self._bodies[question] = frame[SIZE.size :]
            writer.write(framed(frame))


def question_in(frame: bytes) -> bytes:
    """All of a request but its correlation id and what comes behind the partition."""
    named = frame.find(TOPIC, START.size)
    end = len(frame) if named < 0 else named + len(TOPIC) + PARTITION
    return frame[:4] + frame[START.size : end]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(SIZE.unpack(await reader.readexactly(SIZE.size))[0])


def framed(frame: bytes) -> bytes:
    return SIZE.pack(len(frame)) + frame


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def serve(arguments: argparse.Namespace) -> None:
    disk = Disk(arguments.sync_file) if arguments.sync_file else None
    answers = Answers(arguments.upstream, disk)
    server = await asyncio.start_server(answers.serve, *arguments.listen)
    print("ready", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="Answers with ready-made bytes.")
    parser.add_argument("--listen", type=address, required=True)
    parser.add_argument("--upstream", type=address, required=True)
    parser.add_argument("--sync-file", default="")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
