"""The runner with the fake renderer in place of a diffusers pipeline, and faults on demand.

python tests/support/hooked.py HOOKS [run] MANIFEST …, also under torchrun. HOOKS is JSON, prompts
by their text: {"seconds": 0.3, "raise": [prompt], "kill": {prompt: times}, "clock": 3600}.
{"slow": {"seconds": 3, "launches": 2}}: so slow, the first two times that Slurm starts the job.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.cli import main
from runner.errors import GaveUpError
from runner.plan import Task
from runner.prepare import strategy
from runner.render import load as render_load
from runner.render.fake import FakePipeline
from runner.render.results import Failure, Rendered


class Hooked(FakePipeline):
    def __init__(self, hooks: dict[str, Any], stop: Any) -> None:
        slow = hooks.get("slow", {})
        is_slow = int(os.environ.get("SLURM_RESTART_COUNT", 0)) < slow.get("launches", 0)
        super().__init__(stop, (slow if is_slow else hooks).get("seconds", 0.0))
        self.hooks = hooks

    def render(self, tasks: Sequence[Task], degraded: Sequence[str] = ()) -> Rendered:
        for task in tasks:
            if "marks" in self.hooks:
                (Path(self.hooks["marks"]) / f"begun-{task.index}").touch()
            if task.prompt in self.hooks.get("raise", ()):
                return Rendered([Failure(task, "error", "ValueError: asked for", "")])
            if task.prompt in self.hooks.get("flag", ()):
                return Rendered([Failure(task, "skipped", "flagged: black")])
            if task.prompt in self.hooks.get("give_up", ()):
                return Rendered([], GaveUpError("3 images in a row found no memory"))
            if self._is_due(task.prompt):
                # The writer commits what came before: the test counts it.
                time.sleep(0.3)
                os.kill(os.getpid(), getattr(signal, self.hooks.get("signal", "SIGKILL")))
                time.sleep(60)
        return super().render(tasks, degraded)

    def _is_due(self, prompt: str) -> bool:
        """Whether to die here: so many times, over all processes."""
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

    def load(manifest: Any, folder: Any, *, stop: Any, **_: Any) -> Hooked:
        if hooks.get("load_fails_on") == int(os.environ.get("RANK", "0")):
            raise RuntimeError("no weights today")
        return Hooked(hooks, stop)

    render_load.load = load  # type: ignore[assignment]
    strategy.check = lambda plan, folder: None
    if "clock" in hooks:
        real = time.time
        time.time = lambda: real() + hooks["clock"]


if __name__ == "__main__":
    hook(json.loads(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
