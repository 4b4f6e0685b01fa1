"""The example of a session runs as it is: killed in the midst and started again, it books each
order once, and ends in peace when it is told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from onceflow import Broker, blocking

BOOK = Path(__file__).resolve().parents[3] / "examples" / "order_bookings" / "book.py"
ORDERS = 400
SECONDS = 60.0


def start(bootstrap: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(BOOK), "--bootstrap", bootstrap, "--instance", "one"]
    return subprocess.Popen(command)


def committed(admin: blocking.Admin) -> int:
    return sum(admin.committed_offsets("booking").values())


def wait_for(admin: blocking.Admin, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while committed(admin) < count:
        assert time.monotonic() < deadline, f"{committed(admin)} of {count}"
        time.sleep(0.02)


def feed(bootstrap: str, first: int, last: int) -> None:
    with blocking.Producer(bootstrap) as producer:
        for number in range(first, last):
            order = {"number": number, "cents": 1190, "country": "de"}
            producer.send("orders", json.dumps(order).encode(), partition=number % 2)
        producer.send("orders", b"no order", partition=0)


def read(bootstrap: str, topic: str) -> list[bytes]:
    with blocking.Consumer(bootstrap, auto_offset_reset="earliest") as reader:
        reader.assign([topic])
        found = []
        while records := reader.poll(1.0):
            found += [record.value or b"" for record in records]
    return found


def test_each_order_is_booked_once(onceflow_broker: Broker) -> None:
    bootstrap = onceflow_broker.bootstrap
    with blocking.Admin(bootstrap) as admin:
        for topic in ("orders", "bookings", "orders.rejected"):
            admin.create_topic(topic, partitions=2)
        feed(bootstrap, 0, ORDERS)
        running = start(bootstrap)
        try:
            wait_for(admin, 1)
            running.send_signal(signal.SIGKILL)
            running.wait(SECONDS)
            running = start(bootstrap)
            feed(bootstrap, ORDERS, 2 * ORDERS)
            wait_for(admin, 2 * ORDERS + 2)
            running.send_signal(signal.SIGTERM)
            assert running.wait(SECONDS) == 0
        finally:
            running.kill()
            running.wait(SECONDS)
    booked = sorted(json.loads(each)["number"] for each in read(bootstrap, "bookings"))
    assert booked == list(range(2 * ORDERS))
    assert json.loads(read(bootstrap, "bookings")[0])["tax"] == 190
    assert read(bootstrap, "orders.rejected") == [b"no order"] * 2
