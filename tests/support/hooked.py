"""The runner with the fake renderer in place of a diffusers pipeline, and faults on demand.

python tests/support/hooked.py HOOKS [run] MANIFEST …, also under torchrun. HOOKS is JSON and names
prompts by their text: {"seconds": 0.3, "raise": [prompt], "kill": {prompt: times}, "clock": 3600}.
{"flag": [prompt], "keep": [prompt]}: flagged images, skipped or written.
{"machine": "b", "dead_after": 4}: as on another machine, which waits so long for a heartbeat.
{"trace": "…"}: that of the errors. {"silent_after": 2}: so long without a heartbeat.
{"accounts_at_once": true}: the accounts of the launch are written with every refresh.
{"device_fails": {"1": prompt}}: that of rank 1, at this prompt or, for "load", when it loads.
{"slow": {"seconds": 3, "launches": 2}}: 3 s an image, in the first two launches by Slurm.
"""

import faulthandler
import json
import os
import signal
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from runner import monitor, run
from runner.cli import main
from runner.errors import GaveUpError, ModelError
from runner.folder import owners, summary
from runner.manifest import load as manifest_load
from runner.model import files as model_files
from runner.plan import Task
from runner.prepare import assignment, strategy
from runner.render import load as render_load
from runner.render.fake import FakePipeline
from runner.render.results import DroppedError, Failure, Image, Rendered

DEVICE_ERROR = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nAnd")


def device_fails(hooks: dict[str, Any], at: str) -> bool:
    """Whether the device of this rank does, at this prompt."""
    return at == hooks.get("device_fails", {}).get(os.environ.get("RANK", "0"))


class Hooked(FakePipeline):
    def __init__(self, hooks: dict[str, Any], stop: Any, inputs: Any = None) -> None:
        slow = hooks.get("slow", {})
        is_slow = int(os.environ.get("SLURM_RESTART_COUNT", 0)) < slow.get("launches", 0)
        super().__init__(stop, (slow if is_slow else hooks).get("seconds", 0.0), inputs)
        self.hooks = hooks

    def render(self, tasks: Sequence[Task], degraded: Sequence[str] = ()) -> Rendered:
        for task in tasks:
            if "marks" in self.hooks and not self._begin(Path(self.hooks["marks"]), task.index):
                return Rendered([], DroppedError())
            if device_fails(self.hooks, task.prompt):
                return Rendered([], DEVICE_ERROR)
            if task.prompt in self.hooks.get("raise", ()):
                trace = self.hooks.get("trace", "")
                return Rendered([Failure(task, "error", "ValueError: asked for", trace)])
            if task.prompt in self.hooks.get("flag", ()):
                return Rendered([Failure(task, "skipped", "flagged: black")])
            if task.prompt in self.hooks.get("give_up", ()):
                return Rendered([], GaveUpError("3 images in a row found no memory"))
            if self._is_due(task.prompt):
                # Time for the writer to commit the images before this one.
                time.sleep(0.3)
                os.kill(os.getpid(), getattr(signal, self.hooks.get("signal", "SIGKILL")))
                time.sleep(60)
        rendered = super().render(tasks, degraded)
        for result in rendered.results:
            if isinstance(result, Image) and result.task.prompt in self.hooks.get("keep", ()):
                result.made["flagged"] = "black"
        return rendered

    def _begin(self, marks: Path, index: int) -> bool:
        """Note which process is at the image; wait while the test holds it (Job.hold). False: a
        stop was asked for meanwhile."""
        (marks / f"begun-{index}").write_text(str(os.getpid()))
        while (marks / f"hold-{index}").exists():
            if self.stop.requested:
                return False
            time.sleep(0.02)
        return True

    def _is_due(self, prompt: str) -> bool:
        """Whether to die at this prompt; `times` counts over all processes."""
        for time_ in range(self.hooks.get("kill", {}).get(prompt, 0)):
            mark = Path(self.hooks["marks"]) / f"{prompt.replace(' ', '_')}-{time_}"
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


def hook(hooks: dict[str, Any]) -> None:
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # for tests that hang

    def load(manifest: Any, folder: Any, *, stop: Any, inputs: Any = None, **_: Any) -> Hooked:
        time.sleep(hooks.get("load_s", 0))
        if hooks.get("load_fails_on") == int(os.environ.get("RANK", "0")):
            raise RuntimeError("no weights today")
        if device_fails(hooks, "load"):
            raise DEVICE_ERROR
        if int(os.environ.get("RANK", "0")) in hooks.get("model_refused_on", ()):
            raise ModelError("tiny: cannot be loaded: text_encoder/model.safetensors is cut")
        return Hooked(hooks, stop, inputs)

    render_load.load = load  # type: ignore[assignment]
    strategy.check = lambda plan, folder: None
    model_files.check_files = lambda spec, folder: None
    if "accounts_at_once" in hooks:
        monitor.FIRST_LINE_S, monitor.LINE_GROWTH = 0.0, 1.0
    if "silent_after" in hooks:
        summary.SILENT_AFTER_S = hooks["silent_after"]
    if "rank_0_late_s" in hooks:
        _delay_rank_0(hooks["rank_0_late_s"])
    if "bump" in hooks:
        _bump_counters(hooks["bump"])
    if "clock" in hooks:
        _shift_clock(hooks["clock"])
    if "machine" in hooks:
        owners._machine = lambda: hooks["machine"]
    if "dead_after" in hooks:
        owners.DEAD_AFTER_S = owners.GLANCE_S = hooks["dead_after"]


def _delay_rank_0(by_s: float) -> None:
    """Before it reads the manifest, and after it broadcast a refusal."""
    read, broadcast_error = manifest_load.load, run.broadcast_error

    def late(*given: Any) -> Any:
        if os.environ.get("RANK") == "0":
            time.sleep(by_s)
        return read(*given)

    def slow(*given: Any) -> None:
        broadcast_error(*given)
        time.sleep(by_s)

    manifest_load.load, run.broadcast_error = late, slow


def _bump_counters(counters: dict[str, int]) -> None:
    """As a stranger who found the store's port, once all ranks may take batches."""
    open_shards = assignment.open_shards

    def bumped(store: Any, replicas: int) -> None:
        open_shards(store, replicas)
        for key, amount in counters.items():
            store.add(key, amount)

    assignment.open_shards = bumped


def _shift_clock(by_s: float) -> None:
    """As on a host whose clock is wrong, where heartbeats get that host's time."""
    real, touch = time.time, os.utime
    time.time = lambda: real() + by_s

    def utime(path: Any) -> None:
        touch(path, (time.time(), time.time()))

    owners.os = types.SimpleNamespace(**{**vars(os), "utime": utime})  # type: ignore[assignment]


if __name__ == "__main__":
    hook(json.loads(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
