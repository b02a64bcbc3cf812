"""metrics.prom: the summary as Prometheus reads it. docs/monitoring.md explains the names."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.folder import files
from runner.folder.paths import OutputFolder
from runner.launch.layout import Part

__all__ = ["metrics", "write_metrics"]

HELP = {  # kind and meaning of each
    "runner_running": ("gauge", "1 while a run works"),
    "runner_images": ("gauge", "images of the manifest"),
    "runner_images_done": ("gauge", "images that are there"),
    "runner_images_failed": ("gauge", "images that failed"),
    "runner_images_skipped": ("gauge", "images left out on purpose"),
    "runner_images_per_second": ("gauge", "images per second, without the start of the launch"),
    "runner_left_seconds": ("gauge", "estimated seconds until the end"),
    "runner_launch_seconds": ("gauge", "seconds since the launch began"),
    "runner_process_hours_total": ("counter", "hours of all processes, over all launches"),
    "runner_gpu_hours_total": ("counter", "hours of all GPUs, over all launches"),
    "runner_replica_images_total": ("counter", "images that the replica wrote in this launch"),
    "runner_replica_failures_total": ("counter", "images that failed on the replica"),
    "runner_replica_busy_seconds_total": ("counter", "seconds in which it made images"),
    "runner_replica_images_per_second": ("gauge", "its images per second while it is busy"),
    "runner_replica_last_sign_seconds": ("gauge", "seconds since its last sign of life"),
    "runner_replica_silent": ("gauge", "1 where it gives no sign of life"),
    "runner_replica_memory_peak_bytes": ("gauge", "most memory of a GPU, or of the process"),
}


def write_metrics(
    folder: OutputFolder,
    part: Part | None,
    summary: Mapping[str, Any],
    launch: str,
    check: Callable[[], None],
) -> None:
    """Replace the file at once, as a collector wants it."""
    text = metrics(summary, str(folder.dir))
    files.replace(folder.metrics(part), (text.encode(),), launch, check)


def metrics(summary: Mapping[str, Any], folder: str) -> str:
    """The text of the file, from the content of summary.json."""
    samples: dict[str, list[str]] = {name: [] for name in HELP}
    for name, labels, value in _samples(summary):
        if value is not None:
            text = ",".join(
                f'{key}="{_escaped(str(of))}"' for key, of in {"folder": folder, **labels}.items()
            )
            samples[name].append(f"{name}{{{text}}} {float(value):.10g}")
    lines = []
    for name, (kind, words) in HELP.items():
        if samples[name]:
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *samples[name]]
    return "\n".join([*lines, ""])


def _samples(summary: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Name, labels and value of each."""
    shard = summary["launch"].get("shard")
    job = {"shard": shard} if shard else {}
    yield "runner_running", job, summary["outcome"] == "running"
    for key in ("done", "failed", "skipped"):
        yield f"runner_images_{key}", job, summary[key]
    yield "runner_images", job, summary["images"]
    yield "runner_images_per_second", job, summary["current_images_per_second"]
    yield "runner_left_seconds", job, summary["left_s"]
    yield "runner_launch_seconds", job, summary["seconds"]
    for key in ("process_hours", "gpu_hours"):
        yield f"runner_{key}_total", job, summary["accounting"][key]
    for row in summary["replicas"]:
        place = {"replica": row["replica"], "host": row["host"], "device": row["device"], **job}
        yield "runner_replica_images_total", place, row["images"]
        yield "runner_replica_failures_total", place, row["failed"]
        yield "runner_replica_busy_seconds_total", place, row["busy_s"]
        yield "runner_replica_images_per_second", place, row["images_per_second"]
        yield "runner_replica_last_sign_seconds", place, row["last_sign_s"]
        yield "runner_replica_silent", place, row["state"] == "silent"
        yield "runner_replica_memory_peak_bytes", place, row["memory_peak"]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
