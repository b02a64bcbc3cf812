"""metrics.prom and the accounting of all launches: pure text and sums."""

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from runner.folder.accounting import Spent, accounting, spent_of
from runner.folder.journal import Journal, merge
from runner.folder.metrics import metrics
from runner.folder.pack import _packed


def row(replica: int, host: str, **values: Any) -> dict[str, Any]:
    return {
        "replica": replica,
        "host": host,
        "ranks": [replica],
        "device": "NVIDIA H200",
        "devices": 1,
        "images": 3,
        "failed": 0,
        "busy_s": 1.5,
        "images_per_second": 2.0,
        "last_sign_s": 0.0,
        "state": "busy",
        "memory_peak": 2**33,
        **values,
    }


def test_the_parser_of_prometheus_reads_the_file() -> None:
    rows = [row(0, 'a"\\b\n'), row(1, "b", state="silent", images_per_second=None)]
    spent = spent_of("aaaa", 2, "data_parallel", 3600, rows)
    text = metrics(
        {
            "outcome": "running",
            "images": 10,
            "done": 6,
            "failed": 1,
            "skipped": 0,
            "seconds": 3600,
            "current_images_per_second": None,
            "left_s": 4.0,
            "launch": {"shard": ""},
            "replicas": rows,
            "accounting": accounting([spent]),
        },
        "outputs/a b",
    )
    found = {
        (sample.name, sample.labels.get("replica")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["runner_images_done", None].value == 6
    assert found["runner_gpu_hours_total", None].value == 2
    assert found["runner_replica_silent", "1"].value == 1
    assert found["runner_replica_memory_peak_bytes", "0"].value == 2**33
    assert found["runner_replica_images_total", "0"].labels == {
        "folder": "outputs/a b",
        "replica": "0",
        "host": 'a"\\b\n',
        "device": "NVIDIA H200",
    }
    assert ("runner_replica_images_per_second", "1") not in found  # not known is not 0
    assert ("runner_images_per_second", None) not in found


def test_all_launches_are_counted_also_once_their_journals_are_packed(tmp_path: Path) -> None:
    rows = [row(0, "a"), row(1, "b", devices=0, failed=2, images=5)]
    for generation, launch, strategy in ((2, "aaaa", "device_map"), (4, "bbbb", "data_parallel")):
        journal = Journal(tmp_path, generation, None, launch)
        for seconds in (60, 1800):  # the last line counts
            journal.spent(spent_of(launch, generation, strategy, seconds, rows))
        journal.close()
    record = merge(tmp_path, 20)
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "000005-packed-cccc.jsonl").write_bytes(b"".join(_packed(record, set())))
    assert merge(packed, 20).spent == record.spent
    assert isinstance(record.spent["aaaa"], Spent)
    values = accounting(record.spent.values())
    assert (values["launches"], values["images"], values["failed"]) == (2, 16, 4)
    assert (values["process_hours"], values["gpu_hours"]) == (2.0, 1.0)
    assert values["by_host"]["b"] == {
        "process_hours": 1.0,
        "gpu_hours": 0.0,
        "images": 10,
        "failed": 4,
    }
    assert values["by_strategy"]["device_map"]["gpu_hours"] == 0.5
    assert [one["launch"] for one in values["by_launch"]] == ["aaaa", "bbbb"]
    assert accounting([])["images"] == 0
