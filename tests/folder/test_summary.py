"""The rows of replicas in summary.json: of a running job, and at its end."""

import pytest

from runner.folder.summary import _ended_replicas, replica_rows
from runner.launch.heartbeat import Seen
from runner.launch.pulse import Pulse
from runner.launch.timeline import Timeline


def test_a_replica_is_as_silent_as_its_most_silent_rank() -> None:
    seen = [
        Seen(Pulse(0, 0, "busy", images=4, busy_s=2.0, host="a", devices=1), 0.0, False),
        Seen(Pulse(0, 1, "busy", host="a", devices=1, memory_peak=7), 33.0, False),
        Seen(Pulse(1, 2, "busy", host="b"), 99.0, True),
    ]
    first, second = replica_rows(seen, 10.0)
    assert (first["state"], first["last_sign_s"], first["ranks"]) == ("silent", 33.0, [0, 1])
    assert (first["images_per_second"], first["devices"], first["memory_peak"]) == (2.0, 2, 7)
    assert (second["state"], second["last_sign_s"]) == ("ended", 0.0)


def test_what_was_killed_is_lost_and_what_had_nothing_to_do_has_ended() -> None:
    seen = [
        Seen(Pulse(0, 0, "idle"), 0.0, False),
        Seen(Pulse(1, 1, "busy", images=2), 40.0, False),
        Seen(Pulse(2, 2, "loading"), 40.0, True),
    ]
    known = {"replicas": [*replica_rows(seen, 10.0), "edited", {"replica": []}]}
    rows = _ended_replicas([Pulse(0, 0, images=5, start_s=1.0, busy_s=3.0)], known, 10.0)
    assert [row["state"] for row in rows] == ["ended", "lost", "ended"]
    assert [row["images"] for row in rows] == [5, 2, 0]
    assert rows[0]["idle_s"] == 6.0


def test_spans_double_and_keep_their_sums() -> None:
    timeline = Timeline()
    for second in range(1000):
        timeline.add(float(second), {0: (second / 2, second), 1: (0.0, 0)})
    values = timeline.as_json()
    assert values["span_s"] == 32.0
    assert [len(row["images"]) for row in values["replicas"]] == [32, 32]
    assert [sum(row["images"]) for row in values["replicas"]] == [999, 0]
    assert sum(values["replicas"][0]["busy_s"]) == pytest.approx(499.5)
