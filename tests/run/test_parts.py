"""Runs of a part of the job: --limit and --shard."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.bench import Bench
from support.jobs import wait_for
from support.launch import lines, pixels, summary

from runner.errors import ExitCode
from runner.folder.lock import guard
from runner.render import load as load_module
from runner.render.fake import FakePipeline


def test_a_limited_run_leaves_what_it_was_not_asked_for(bench: Bench) -> None:
    bench.run()
    path = bench.output / "000004.png"
    path.write_bytes(b"")
    bench.run(limit=2)
    assert path.read_bytes() == b""
    bench.run()
    assert path.stat().st_size > 0


def test_after_a_part_the_rest_is_another_command(bench: Bench) -> None:
    bench.run(limit=2)
    assert bench.status(limit=2)["exit_code"] == 0
    report = bench.status()
    assert report["exit_code"] == 75
    assert "run without --limit" in report["sentence"]
    assert "same command" not in report["sentence"]


def test_limit_and_shard_make_their_part(bench: Bench) -> None:
    assert bench.run(limit=2) is ExitCode.COMPLETE
    assert sorted(pixels(bench.output)) == ["000000.png", "000001.png"]
    assert summary(bench.output)["outcome"] == "limited"
    assert bench.status(limit=2)["exit_code"] == 0
    assert bench.status(limit=3)["exit_code"] == bench.status()["exit_code"] == 75
    assert "; 1 missing of the 3 asked for; run" in bench.status(limit=3)["sentence"]
    assert "; 1 missing of the 2 asked for; run" in bench.status(part=(2, 2))["sentence"]
    assert not any("asked for" in bench.status(limit=n)["sentence"] for n in (2, None))
    assert bench.run(part=(2, 2)) is ExitCode.COMPLETE
    assert sorted(pixels(bench.output)) == ["000000.png", "000001.png", "000003.png"]
    assert bench.run(part=(1, 2)) is ExitCode.COMPLETE
    assert summary(bench.output)["outcome"] == "complete"


def test_shards_that_end_together_leave_the_report_of_both(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second shard ends after the first has read the journals, before it writes reports."""
    module = sys.modules["runner.report"]
    monkeypatch.setattr(load_module, "load", lambda *_, stop, **__: FakePipeline(stop))
    merge, waits = module.merge, threading.Event()
    other = threading.Thread(target=lambda: bench.run(part=(2, 2)))

    def meanwhile(*given: Any) -> Any:
        record = merge(*given)
        if not other.ident:
            other.start()
            wait_for(lambda: waits.is_set() or not other.is_alive())
        return record

    def watched(path: Path, patience_s: float) -> Any:
        if threading.current_thread() is other:
            waits.set()
        return guard(path, patience_s)

    monkeypatch.setattr(module, "merge", meanwhile)
    monkeypatch.setattr(module, "guard", watched, raising=False)
    bench.run(part=(1, 2))
    other.join(60)
    assert summary(bench.output)["outcome"] == "complete"
    assert [line["index"] for line in lines(bench.output / "metadata.jsonl")] == list(range(5))
