"""While the job works, rank 0 writes down every few seconds how it stands.

Anyone who sees the folder can read it, on this host or another: summary.json for people and
programs, metrics.prom for Prometheus.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

from runner.errors import DiskError, TakenOverError
from runner.folder.counts import Counts, Launch
from runner.folder.owners import moment
from runner.folder.summary import Live, live_summary, replica_rows, write_summary
from runner.launch.progress import Progress
from runner.launch.store import StoreLostError
from runner.launch.tally import totals
from runner.launch.timeline import Timeline
from runner.prepare.assignment import Assignment
from runner.prepare.rank import Rank

__all__ = ["Monitor"]

REFRESH_S = 2.0


class Monitor:
    """A thread that keeps the files up to date until `end`. It harms nothing: where the disk is
    full or the store lost, it tries again the next time."""

    def __init__(
        self, rank: Rank, assignment: Assignment, launch: Launch, there: Counts, progress: Progress
    ) -> None:
        """`there`: the images as they stood when the launch began."""
        self._rank = rank
        self._assignment = assignment
        self._launch = launch
        self._there = there
        self._progress = progress
        self._path = rank.folder.live_summary(rank.job.part)
        self._check = rank.owned(assignment.launch).check
        self._timeline = Timeline()
        self._beats = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._refreshing = threading.Lock()

    def __enter__(self) -> "Monitor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Refresh once more, and never again: the report comes next. Any thread may call it."""
        with self._refreshing:
            if not self._stop.is_set():
                self._stop.set()
                self._refresh()

    def _run(self) -> None:
        while True:
            with self._refreshing:
                if self._stop.is_set():
                    return
                self._refresh()
            self._stop.wait(REFRESH_S)

    def _refresh(self) -> None:
        with contextlib.suppress(StoreLostError, DiskError, TakenOverError):
            write_summary(self._path, self._now(), self._launch.id, self._check)

    def _now(self) -> Mapping[str, Any]:
        """The summary of this moment. Raises StoreLostError."""
        ranks_per_replica = self._launch.world_size // self._launch.replicas
        made, seconds = totals(self._rank.store), time.monotonic() - self._assignment.begun
        rows = replica_rows(self._rank.heartbeat.seen(ranks_per_replica), seconds)
        self._timeline.add(
            seconds, {row["replica"]: (row["busy_s"], row["images"]) for row in rows}
        )
        self._beats += 1
        counts = dataclasses.replace(
            self._there,
            done=self._there.done + made.made,
            failed=self._there.failed + made.failed,
            skipped=self._there.skipped + made.skipped,
            made=made.made,
        )
        launch = dataclasses.replace(self._launch, seconds=round(seconds, 3))
        live = Live(
            self._progress.per_second,
            self._progress.left_s,
            rows,
            self._timeline.as_json(),
            {"count": self._beats, **moment()},
        )
        return live_summary(counts, launch, live)
