"""Random faults, one after another, on jobs that must lose nothing.

python tests/chaos.py --faults 200 --seed 1 [--image-to-image]

Each launch has another world size and meets a fault: a rank, the launcher or everything killed,
TERM, the stop file, a full disk, a torn journal, a cut image, a clock that jumps, a second job on
the folder, also one from another machine whose clock differs, or that takes the folder over while
the first job is paused. When a job is complete, everything that DESIGN's invariants promise is
compared with an undisturbed run, and the next job begins. Root is needed for the full disk alone.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from support.forked import Forked
from support.jobs import Job, crc_of, ended, kill, kill_tree, workers

IMAGES = 90
SECONDS = 0.15  # an image
DISK_BYTES = 8_000_000
HOUR_S, DAY_S = 3600.0, 86_400.0
FROM_SCRATCH = 0.1  # of the launches
PR_SET_CHILD_SUBREAPER = 36
REFUSAL = "another job works on this folder"


class Chaos:
    """One run: counts its faults by kind."""

    def __init__(self, seed: int, folder: Path, *, has_inputs: bool = False) -> None:
        """`has_inputs`: each prompt has an input image."""
        self.inputs = folder / "inputs" if has_inputs else None
        self.random = random.Random(seed)
        self.folder = folder
        self.faults: Counter[str] = Counter()
        self.jobs = 0
        self.cut: set[str] = set()  # images that faults cut, until they are made again
        self.again = 0  # images made more than once
        self.job = self.reference = self._new_job("reference", 0)

    def run(self, faults: int) -> None:
        assert self.reference.run(cold=True).code == 0
        expected = self.reference.pixels()
        while sum(self.faults.values()) < faults:
            self.jobs += 1
            output = self.folder / f"disk-{self.jobs}"
            with Disk(output) as disk:
                self.job = self._new_job(f"job-{self.jobs}", self.jobs, output=disk.path)
                self._until_complete(disk, faults, expected)

    def _new_job(self, name: str, number: int, **values: Any) -> Job:
        # Always the same prompts and seed; the batch size varies.
        size = 1 + number % 3
        values = {"batch_size": size, "stop_grace_s": 5, **values}
        return Job(self.folder / name, IMAGES, self.inputs, **values)

    def _until_complete(self, disk: "Disk", faults: int, expected: dict[str, int]) -> None:
        code = 75
        while code:
            enough = sum(self.faults.values()) >= faults
            code = self._launch(None if enough else self.random.choice(KINDS), disk)
            assert code in (0, 1, 75, -signal.SIGKILL, -signal.SIGTERM), code
            self._nothing_is_broken(expected)
        self._everything_is_there(expected)

    def _launch(self, kind: str | None, disk: "Disk") -> int:
        """One launch with one fault. Returns its exit code: 0 only for a complete job."""
        processes = self.random.choice((1, 1, 2, 2, 3))
        restarts = self.random.choice((0, 0, 2)) if processes > 1 else 0
        hooks: dict[str, Any] = {"seconds": SECONDS}
        if kind == "clock":
            hooks["clock"] = self.random.choice((-DAY_S, DAY_S))
        if kind == "shifted clock":
            hooks |= {"machine": "a", "clock": self.random.choice((-HOUR_S, HOUR_S))}
        if kind == "stopped owner":
            hooks["machine"] = "a"
        if kind == "at an image":
            prompt = f"prompt {self.random.randrange(IMAGES)}"
            hooks |= {"kill": {prompt: 1}, "marks": str(self.folder / f"marks-{time.time_ns()}")}
            Path(hooks["marks"]).mkdir()
        process = self._start(processes, restarts, hooks)
        try:
            if kind is not None:
                self.faults[kind] += 1
                self._wait_for_work(process)
                getattr(self, "_" + kind.replace(" ", "_"))(process, disk)
            end = ended(process)
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
        _, alive = psutil.wait_procs(self._children(), timeout=60)
        assert not alive, f"left behind after {kind}: {alive}"
        disk.free()
        # Either of two jobs may be the first to take the folder.
        is_refused = kind == "two jobs" and REFUSAL in end.err
        is_spoilt = self._spoil_files(kind)
        print(
            f"{sum(self.faults.values()):4} job {self.jobs} {kind}: {processes} processes, "
            f"{restarts} restarts: {end.code}, {len(self.job.images())} of {IMAGES}",
            flush=True,
        )
        assert kind or end.code == 0, end.err  # without a fault, a launch completes
        return 75 if is_spoilt or is_refused else end.code

    def _start(self, processes: int, restarts: int, hooks: dict[str, Any]) -> Any:
        """Mostly forked, which is quick; now and then from scratch, as users do it."""
        if self.random.random() < FROM_SCRATCH:
            return self.job.start(processes=processes, restarts=restarts, hooks=hooks, cold=True)
        return Forked(["run", str(self.job.manifest)], hooks, processes, restarts)

    def _children(self) -> list[psutil.Process]:
        """Processes of the launch that still run; we adopt orphans (PR_SET_CHILD_SUBREAPER)."""
        for process in (children := psutil.Process().children(recursive=True)):
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        return [process for process in children if process.is_running()]

    def _wait_for_work(self, process: Any) -> None:
        """Some faults come during the start, most during the work."""
        if self.random.random() < 0.2:
            time.sleep(self.random.uniform(0.5, 4))
            return
        before, end = len(self.job.images()), time.monotonic() + 60
        wanted = self.random.randrange(1, 12)
        while len(self.job.images()) < before + wanted and process.poll() is None:
            if time.monotonic() > end:
                ended(process, 0)  # prints the stacks
            time.sleep(0.02)

    def _kill_a_rank(self, process: Any, disk: "Disk") -> None:
        with suppress(psutil.NoSuchProcess):  # it may have ended by itself
            kill(self.random.choice(workers(process.pid) or [psutil.Process(process.pid)]))

    def _kill_the_launcher(self, process: Any, disk: "Disk") -> None:
        process.kill()

    def _kill_all(self, process: Any, disk: "Disk") -> None:
        with suppress(psutil.NoSuchProcess):
            kill_tree(process.pid)

    def _term(self, process: Any, disk: "Disk") -> None:
        process.terminate()

    def _two_ctrl_c(self, process: Any, disk: "Disk") -> None:
        process.send_signal(signal.SIGINT)
        time.sleep(self.random.uniform(0.05, 0.5))
        process.send_signal(signal.SIGINT)

    def _stop_file(self, process: Any, disk: "Disk") -> None:
        with suppress(FileNotFoundError):
            (self.job.output / ".runner" / "stop").touch()

    def _full_disk(self, process: Any, disk: "Disk") -> None:
        disk.fill(self.random.randrange(4096))

    def _torn_journal(self, process: Any, disk: "Disk") -> None:
        self._kill_all(process, disk)

    _cut_image = _torn_journal
    _lost_reports = _torn_journal

    def _clock(self, process: Any, disk: "Disk") -> None:
        self._kill_all(process, disk)

    def _at_an_image(self, process: Any, disk: "Disk") -> None:
        """The hook does it, if the image is not made yet."""

    def _two_jobs(self, process: Any, disk: "Disk") -> None:
        self._second_job(process, {})

    def _shifted_clock(self, process: Any, disk: "Disk") -> None:
        self._second_job(process, {"machine": "b", "dead_after": 12})

    def _second_job(self, process: Any, hooks: dict[str, Any]) -> None:
        hooks = {"seconds": SECONDS, **hooks}
        second = ended(Forked(["run", str(self.job.manifest)], hooks, 1, 0))
        first = process.poll()
        is_refused = second.code == 2 and REFUSAL in second.err
        # Before the first has its lock, or after its end, the second is alone.
        assert is_refused or second.code == 0 or first is not None, (second.code, second.err)

    def _stopped_owner(self, process: Any, disk: "Disk") -> None:
        """It is paused, another machine takes the folder over and completes it, it wakes up."""
        with suppress(psutil.NoSuchProcess):  # it may have ended by itself
            paused = [*workers(process.pid), psutil.Process(process.pid)]
            for owner in paused:
                kill(owner, signal.SIGSTOP)
            is_owner = self._owner() in [owner.pid for owner in paused]
            hooks = {"seconds": SECONDS / 3, "machine": "b", "dead_after": 4}
            try:
                second = ended(Forked(["run", str(self.job.manifest)], hooks, 1, 0))
                before = self._stamps()
            finally:
                for owner in paused:
                    kill(owner, signal.SIGCONT)
            first = ended(process, 90)
            # Paused at the wrong moment, it holds the guard that only the kernel could free.
            is_guarded = second.code == 2 and "has held this file" in second.err
            assert second.code == 0 or is_guarded, (second.code, second.err)
            after = self._stamps()
            changed = {path.name for path in before | after if before.get(path) != after.get(path)}
            assert not is_owner or is_guarded or not changed, (changed, first.code, first.err)

    def _owner(self) -> int:
        """The process that has the folder, by its lock."""
        with suppress(FileNotFoundError):
            lock = (self.job.output / ".runner" / "locks" / "all.json").read_text()
            return int(json.loads(lock)["pid"])
        return 0

    def _stamps(self) -> dict[Path, int]:
        files = filter(Path.is_file, self.job.output.iterdir())
        return {path: path.stat().st_mtime_ns for path in files}

    def _spoil_files(self, kind: str | None) -> bool:
        """Damage files as a crash of the machine may: cut journals or an image, remove reports."""
        if kind == "torn journal":
            journals = [*(self.job.output / ".runner" / "journal").glob("*")]
            for path in self.random.sample(journals, min(2, len(journals))):
                os.truncate(path, max(0, path.stat().st_size - self.random.randrange(1, 300)))
        if kind == "cut image" and self.job.images():
            path = self.job.output / self.random.choice(self.job.images())
            os.truncate(path, self.random.randrange(max(1, path.stat().st_size)))  # 0: cut before
            self.cut.add(path.name)
        if kind == "lost reports":
            for name in ("metadata.jsonl", "summary.json", "failures.jsonl"):
                (self.job.output / name).unlink(missing_ok=True)
        return kind in ("torn journal", "cut image", "lost reports")

    def _nothing_is_broken(self, expected: dict[str, int]) -> None:
        """After each fault: every image with a final name is whole and has the right pixels."""
        partial = {path.name for path in self.job.partial_files() if path.suffix == ".png"}
        assert partial <= self.cut, partial
        for name in set(self.job.images()) - partial:
            assert expected[name] == crc_of(self.job.output / name), name
        self.cut &= partial

    def _everything_is_there(self, expected: dict[str, int]) -> None:
        job, wanted = self.job, list(range(IMAGES))
        assert job.pixels() == expected
        assert job.partial_files() == []
        assert job.failures() == []
        lines = job.metadata()
        assert [line["index"] for line in lines] == wanted
        assert [line["prompt"] for line in lines] == job.prompts
        entries = {line["done"]: line for line in job.journal() if "done" in line}
        assert sorted(entries) == wanted
        for index, line in entries.items():
            data = (job.output / f"{index:06d}.png").read_bytes()
            assert (line["size"], line["crc"]) == (len(data), zlib.crc32(data))
        summary = job.summary()
        assert (summary["outcome"], summary["done"], summary["failed"]) == ("complete", IMAGES, 0)
        assert not [*(job.output / ".runner" / "locks").glob("*.json")]
        made = Counter(line["done"] for line in job.journal() if line.get("made"))
        self.again += sum(count - 1 for count in made.values())
        before = {path: path.stat().st_mtime_ns for path in job.output.glob("*.png")}
        again = Forked(["run", str(job.manifest)], {}, 1, 0)  # must touch nothing
        assert ended(again).code == 0
        assert before == {path: path.stat().st_mtime_ns for path in job.output.glob("*.png")}


KINDS = (
    *("kill a rank", "kill the launcher", "kill all", "term", "two ctrl c", "stop file"),
    *("full disk", "torn journal", "cut image", "lost reports", "clock", "at an image"),
    *("two jobs", "stopped owner", "shifted clock"),
)


class Disk:
    """A small file system that can be filled; without root, a plain folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Disk":
        self.path.mkdir()
        self.is_mounted = os.geteuid() == 0
        if self.is_mounted:
            words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.path)]
            subprocess.run(words, check=True)
        self.filler = self.path / "filler.bin"
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True)

    def fill(self, left: int) -> None:
        """Fill the disk until about `left` bytes are free."""
        if not self.is_mounted:
            return
        with suppress(OSError), self.filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        with suppress(OSError):
            os.truncate(self.filler, max(0, self.filler.stat().st_size - left))

    def free(self) -> None:
        self.filler.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--image-to-image", action="store_true", help="give each prompt an input image"
    )
    options = parser.parse_args(arguments)
    start = time.monotonic()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # to see what a launch leaves behind
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        chaos = Chaos(options.seed, Path(folder), has_inputs=options.image_to_image)
        chaos.run(options.faults)
    figures = {
        "faults": sum(chaos.faults.values()),
        "kinds": dict(chaos.faults),
        "jobs": chaos.jobs,
        "images": chaos.jobs * IMAGES,
        "partial files": 0,
        "lost": 0,
        "duplicates": 0,
        "made again": chaos.again,
        "seconds": round(time.monotonic() - start),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
