"""What it costs a job to be watched, and whether `status` is right: `python monitoring.py`.

Four processes with one thread each make images of the demo model. All the while `status` is asked
twice a second from this process: `done` must lie between the images that were there five seconds
before and those that are there now. Halfway one process is stopped (SIGSTOP): how long until it is
shown as silent; then it goes on. The cost is CPU time of the threads that publish and write, by the
CPU time of the job, both from the first batch on, in this one run. About five minutes on 2 cores.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arguments

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

PROMPTS = ("a red fox in the snow", "the moon on the sea", "a dog under the sun", "a green house")
RANKS, STOPPED = 4, 2
NOTES = "MONITORING_NOTES"  # the folder where ranks note their process and what they spent
ASK_S, RIGHT_WITHIN_S, SILENT_WITHIN_S, MOST_COST = 0.5, 5.0, 60.0, 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=arguments.whole(16), default=200)
    parser.add_argument("--json", type=arguments.new_file)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.exit(child(*options.child))
    with tempfile.TemporaryDirectory() as name:
        found = measured(Path(name), options.images)
    print(f"{found['asked']} answers of status, {found['wrong']} of them wrong")
    print(f"the stopped process was shown as silent after {found['silent_s']:.1f} s")
    print(
        f"{found['cost']:.2%} of the job's CPU time ({found['cost_ms']:.1f} ms a second and rank)"
    )
    arguments.write_json(options.json, found)
    if found["wrong"] or found["silent_s"] > SILENT_WITHIN_S or found["cost"] > MOST_COST:
        raise SystemExit("not as promised")


def measured(folder: Path, images: int) -> dict[str, Any]:
    manifest, out = folder / "job.yaml", folder / "out"
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(images)]
    manifest.write_text(json.dumps({"model": "demo", "seed": 1, "prompts": prompts}))
    run = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
    job = subprocess.Popen(
        [sys.executable, *run, __file__, "--child", str(manifest), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), NOTES: str(folder)},
        stderr=subprocess.DEVNULL,
    )
    found = watched(job, manifest, out, images)
    if job.wait():
        raise SystemExit("the job failed")
    spent = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    watching, whole, wall = (sum(row[key] for row in spent) for key in ("watching", "cpu", "wall"))
    return {**found, "cost": watching / whole, "cost_ms": 1000 * watching / wall}


def watched(
    job: "subprocess.Popen[bytes]", manifest: Path, out: Path, images: int
) -> dict[str, Any]:
    """Ask until the job ends."""
    from runner.commands.status import status
    from runner.manifest.load import load

    loaded = load(manifest)
    asked = wrong = 0
    stopped_at, silent_s = 0.0, float("inf")
    counts: list[tuple[float, int]] = []
    while job.poll() is None:
        now = time.monotonic()
        counts.append((now, len([*out.glob("*.png")])))
        before = [count for at, count in counts if at <= now - RIGHT_WITHIN_S] or [0]
        values = status(loaded, out, None, None)
        if values["outcome"] == "running":
            asked += 1
            wrong += not before[-1] <= values["done"] <= len([*out.glob("*.png")])
        states = {row["replica"]: row["state"] for row in values.get("replicas", ())}
        if not stopped_at and counts[-1][1] >= images // 2:
            stopped_at = time.monotonic()
            os.kill(int((manifest.parent / f"{STOPPED}.pid").read_text()), signal.SIGSTOP)
        if stopped_at and silent_s == float("inf") and states.get(STOPPED) == "silent":
            silent_s = time.monotonic() - stopped_at
            os.kill(int((manifest.parent / f"{STOPPED}.pid").read_text()), signal.SIGCONT)
        time.sleep(ASK_S)
    return {"asked": asked, "wrong": wrong, "silent_s": silent_s}


def child(manifest: str, out: str) -> int:
    """The runner, which notes what its watching threads spend."""
    from runner.cli import main as run
    from runner.launch.heartbeat import Heartbeat
    from runner.launch.pulse import OwnPulse
    from runner.launch.store import _Client
    from runner.monitor import Monitor

    rank, notes = os.environ["RANK"], Path(os.environ[NOTES])
    (notes / f"{rank}.pid").write_text(str(os.getpid()))
    spent = {"watching": 0.0}
    is_watching = threading.local()
    begin = {"cpu": time.process_time(), "wall": time.monotonic()}

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def measure(*given: Any) -> Any:
            start, is_watching.now = time.thread_time(), True
            try:
                return call(*given)
            finally:
                spent["watching"] += time.thread_time() - start
                is_watching.now = False

        return measure

    call_store = _Client.call

    def call(self: _Client, operation: Callable[[Any], Any]) -> Any:
        """A thread of the store's client works for those that watch."""
        is_ours = getattr(is_watching, "now", False)
        return call_store(self, timed(operation) if is_ours else operation)

    _Client.call = call  # type: ignore[method-assign,assignment]
    Heartbeat._publish = timed(Heartbeat._publish)  # type: ignore[method-assign]
    Monitor._refresh = timed(Monitor._refresh)  # type: ignore[method-assign]
    works_from = OwnPulse.works_from

    def from_here(self: OwnPulse, start_s: float) -> None:
        spent["watching"] = 0.0
        begin.update(cpu=time.process_time(), wall=time.monotonic())
        works_from(self, start_s)

    OwnPulse.works_from = from_here  # type: ignore[method-assign]
    code = run(["run", manifest, "--output", out])
    now = {"cpu": time.process_time(), "wall": time.monotonic()}
    row = {**spent, **{key: now[key] - begin[key] for key in now}}
    (notes / f"{rank}.json").write_text(json.dumps(row))
    return code


if __name__ == "__main__":
    main()
