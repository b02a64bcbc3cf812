"""While the job works, rank 0 writes down every few seconds how it stands.

Anyone who sees the folder can read it, on this host or another: summary.json for people and
programs, metrics.prom for Prometheus.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from runner.errors import DiskError, TakenOverError
from runner.folder.accounting import Spent, accounting, spent_of
from runner.folder.counts import Counts, Launch
from runner.folder.journal import Journal
from runner.folder.metrics import write_metrics
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
FIRST_LINE_S, LINE_GROWTH = 5.0, 1.02


class Monitor:
    """A thread that keeps the files up to date until `end`. It harms nothing: where the disk is
    full or the store lost, it tries again the next time."""

    def __init__(
        self,
        rank: Rank,
        assignment: Assignment,
        launch: Launch,
        there: Counts,
        spent: Sequence[Spent],
        progress: Progress,
    ) -> None:
        """`there`: the images as they stood when the launch began; `spent`: by earlier launches."""
        self._rank = rank
        self._assignment = assignment
        self._launch = launch
        self._there = there
        self._spent = spent
        self._journal = Journal(
            rank.folder.journals, assignment.generation, None, assignment.launch
        )
        self._next_line_s = FIRST_LINE_S
        self._progress = progress
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
                self._next_line_s = 0.0
                self._refresh()
                with contextlib.suppress(DiskError):
                    self._journal.close()

    def _run(self) -> None:
        while True:
            with self._refreshing:
                if self._stop.is_set():
                    return
                self._refresh()
            self._stop.wait(REFRESH_S)

    def _refresh(self) -> None:
        folder, part, launch = self._rank.folder, self._rank.job.part, self._launch.id
        with contextlib.suppress(StoreLostError, DiskError, TakenOverError):
            values = self._now()
            write_summary(folder.live_summary(part), values, launch, self._check)
            write_metrics(folder, part, values, launch, self._check)
            self._account(values["replicas"], values["seconds"])

    def _account(self, rows: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """A line for the journal from time to time, more and more seldom: a launch that is killed
        has been written down but for its last few percent."""
        if seconds >= self._next_line_s:
            self._check()
            self._journal.spent(self._spent_now(rows, seconds))
            self._next_line_s = seconds * LINE_GROWTH

    def _spent_now(self, rows: Sequence[Mapping[str, Any]], seconds: float) -> Spent:
        launch = self._launch
        return spent_of(launch.id, launch.generation, launch.strategy, seconds, rows)

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
            accounting([*self._spent, self._spent_now(rows, seconds)]),
            {"count": self._beats, **moment()},
        )
        return live_summary(counts, launch, live)
