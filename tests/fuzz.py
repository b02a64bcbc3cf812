"""Random manifests: each is planned or refused in words, and what is planned can be made.

python tests/fuzz.py --manifests 100000 --renders 500 --seed 1
python tests/fuzz.py --manifests 100000 --seed 1 --case 4711        one of them again

`validate` and `plan` see every manifest, in a few processes. Each must end with 0 or 2, with lines
of the runner's own alone: no traceback, no warning of a library. Of those that `plan` accepts, some
are rendered with tiny models of every family; a fault is one of which no image can be made.
"""

import argparse
import contextlib
import functools
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from support.launches import Ended, Launcher
from support.odd_manifests import Case, TinyModel, case

from runner import options
from runner.cli import main as command
from runner.model import complete, files, packages, source

PROCESSES = 2
CASES_AT_ONCE = 100
HANGS_AFTER_S = 120
RENDER_S = 180.0
MANIFESTS_A_MODEL = 100  # a short run takes some of the models
# What a tiny model makes in a moment.
MOST_IMAGES, MOST_PIXELS, MOST_STEPS, MOST_NUMBER = 8, 256 * 256, 8, 2000
MANY = 20
MEMORY_BYTES = 16 << 30  # of an image's process
# What only the machine that makes the images can say.
HERE_ALONE = ("dtype float16 needs a GPU",)
PLACE = re.compile(r"runner: (job\.yaml|list|--set|… and |.*: cannot be loaded)")  # a data set


class Fault(Exception):
    """What must not happen."""


class Hung(BaseException):
    """Nothing in the runner may catch it."""


@dataclass(slots=True)
class Tally:
    """What came of some cases."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[int, str]] = field(default_factory=list)
    to_render: list[tuple[int, int]] = field(default_factory=list)  # case, processes

    def add(self, other: "Tally") -> None:
        self.ends += other.ends
        self.faults += other.faults
        self.to_render += other.to_render


@dataclass(frozen=True, slots=True)
class Fuzz:
    seed: int
    models: Sequence[TinyModel]

    def case(self, number: int) -> Case:
        return case(f"{self.seed}:{number}", self.models)

    def look_at(self, numbers: range) -> Tally:
        """Validate and plan these cases, in a folder of their own."""
        tally = Tally()
        signal.signal(signal.SIGALRM, _hung)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            for number in numbers:
                with _in_new_folder(Path(folder) / str(number)):
                    try:
                        self._look_at(number, tally)
                    except Fault as fault:
                        tally.faults.append((number, str(fault)))
        return tally

    def _look_at(self, number: int, tally: Tally) -> None:
        one = self.case(number)
        _write(one)
        before = sorted(Path().rglob("*"))
        valid, _ = _run(["validate", "job.yaml", *one.arguments])
        random_ = random.Random(number)
        processes = random_.choice((1, 1, 1, 1, 2, 3, 4))
        words = ["plan", "job.yaml", "--world-size", str(processes), *one.arguments]
        is_json = random_.random() < 0.7
        planned, out = _run([*words, "--json"] if is_json else words)
        if valid == 2 and planned != 2:
            raise Fault("refused by validate, not by plan")
        if before != sorted(Path().rglob("*")):
            raise Fault("wrote files")
        tally.ends[
            "planned" if planned == 0 else "refused by plan" if valid == 0 else "invalid"
        ] += 1
        if planned == 0 and is_json and _is_quick(_json(out), processes):
            tally.to_render.append((number, processes))

    def render(self, launcher: Launcher, number: int, processes: int) -> str:
        """Make a case's images. Returns how that ended; raises Fault."""
        with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
            folder = Path(name) / "a" / "b"
            folder.mkdir(parents=True)
            one = self.case(number)
            for file, data in one.files.items():
                (folder / file).write_bytes(data)
            ended = launcher(
                *(processes, "run", folder / "job.yaml", *one.arguments),
                patches=["fuzz:limit_memory"], folder=folder, timeout_s=RENDER_S,
            )  # fmt: skip
            return _judged(ended, folder)


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _judged(ended: Ended, folder: Path) -> str:
    words = " | ".join(line for line in ended.words.splitlines() if line.strip())[-600:]
    if set(ended.codes) == {0}:
        return "complete"
    if any(reason in words for reason in HERE_ALONE):
        return "refused on this machine"
    summaries = [json.loads(path.read_text()) for path in folder.rglob("summary.json")]
    if 3 in ended.codes and summaries and summaries[0]["done"]:
        return "some images failed"
    reasons = [path.read_text().partition("\n")[0] for path in folder.rglob("failures.jsonl")]
    raise Fault(f"rendered: {ended.codes}: {[json.loads(r)['error'] for r in reasons]}: {words}")


def _run(words: list[str]) -> tuple[int, str]:
    """A command in this process: its exit code and what it printed. Raises Fault."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        signal.alarm(HANGS_AFTER_S)
        try:
            code = command(words)
        except SystemExit as end:
            code = int(end.code or 0)
        except Hung:
            raise Fault(f"{words[0]}: hangs") from None
        except Exception:
            raise Fault(f"{words[0]}: {_short(traceback.format_exc())}") from None
        finally:
            signal.alarm(0)
    lines = err.getvalue().splitlines()
    if strange := [line for line in lines if not line.startswith("runner: ")]:
        raise Fault(f"{words[0]}: a line that is not the runner's: {strange[0]}")
    if code not in (0, 2) or bool(lines) != (code == 2):
        raise Fault(f"{words[0]}: exit code {code}, {lines[:1]}")
    if words[0] == "validate" and (lost := [line for line in lines if not PLACE.match(line)]):
        raise Fault(f"validate: a line that names no place: {lost[0]}")
    return code, out.getvalue()


def _short(trace: str) -> str:
    """The end of a traceback, in one line."""
    lines = trace.strip().splitlines()
    places = [line.strip() for line in lines if line.startswith("  File ")]
    return f"{lines[-1][:300]} ({' < '.join(reversed(places[-3:]))})"


def _json(text: str) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise Fault(f"plan --json: {name} is no JSON")

    try:
        found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise Fault(f"plan --json: {error}") from None
    return found


def _is_quick(plan: dict[str, Any], processes: int) -> bool:
    """Whether all images of a plan are soon made here."""
    if plan["images"] > MOST_IMAGES or processes > 2:
        return False
    return all(_is_quick_image(task["parameters"]) for task in plan["tasks"])


def _is_quick_image(parameters: dict[str, Any]) -> bool:
    height, width = parameters.get("height"), parameters.get("width")
    steps = [value for name, value in parameters.items() if "num_inference_steps" in name]
    is_small = height and width and height * width <= MOST_PIXELS
    is_short = steps and all(step is not None and step <= MOST_STEPS for step in steps)
    numbers = [value for value in parameters.values() if isinstance(value, int)]
    return bool(is_small and is_short and all(abs(n) <= MOST_NUMBER for n in numbers))


def keep_what_never_changes() -> None:
    """Read the packages and the models once for all manifests, which is most of the time."""
    options.parser = functools.cache(options.parser)
    packages.needed_backends = functools.cache(packages.needed_backends)
    files.check_files = functools.cache(complete.check_files)
    files.digests = functools.cache(files.digests)
    source.tree_of = functools.cache(source.tree_of)


def _hung(*_: object) -> None:
    raise Hung


@contextlib.contextmanager
def _in_new_folder(folder: Path) -> Iterator[None]:
    folder.mkdir()
    with contextlib.chdir(folder):
        yield
    shutil.rmtree(folder)


def _write(one: Case) -> None:
    for name, data in one.files.items():
        Path(name).write_bytes(data)


def tiny_models(folder: Path, seed: int, most: int) -> list[TinyModel]:
    """Tiny pipelines, saved by a process of its own: `plan` must do without torch."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_save_models, args=(folder, seed, most))
    process.start()
    process.join()
    assert process.exitcode == 0
    found = json.loads((folder / "models.json").read_text())
    return [TinyModel(**{**values, "folder": Path(values["folder"])}) for values in found]


def _save_models(folder: Path, seed: int, most: int) -> None:
    os.environ |= {"DIFFUSERS_VERBOSITY": "error", "TRANSFORMERS_VERBOSITY": "error"}
    from support import tiny

    names = random.Random(seed).sample(sorted(tiny.MODELS), min(most, len(tiny.MODELS)))
    saved = []
    for name in names:
        model = tiny.MODELS[name]
        with contextlib.redirect_stderr(io.StringIO()):
            path = tiny.save(name, folder / name.replace("/", "-"))
        values = TinyModel(
            path, name.partition("/")[0], dict(model.parameters), dict(model.own), model.negative
        )
        saved.append({**asdict(values), "folder": str(path)})
    (folder / "models.json").write_text(json.dumps(saved))


def look_at_all(fuzz: Fuzz, manifests: int) -> Tally:
    tally, start = Tally(), time.monotonic()
    parts = [
        range(first, min(first + CASES_AT_ONCE, manifests))
        for first in range(0, manifests, CASES_AT_ONCE)
    ]
    context = multiprocessing.get_context("fork")
    with context.Pool(PROCESSES, keep_what_never_changes) as pool:
        for part in pool.imap_unordered(fuzz.look_at, parts):
            tally.add(part)
            for number, words in part.faults:
                print(f"case {number}: {words}", flush=True)
            done = sum(tally.ends.values()) + len(tally.faults)
            if done % 1000 < CASES_AT_ONCE:
                print(f"{done} manifests, {time.monotonic() - start:.0f} s", flush=True)
    return tally


def render_some(fuzz: Fuzz, cases: Sequence[tuple[int, int]]) -> Tally:
    tally = Tally()
    # To import every family at once is worth it for many images alone.
    setups = ["support.tiny:preload"] if len(cases) > MANY else []
    launchers = [Launcher(*setups) for _ in range(PROCESSES if setups else 1)]

    def render(place: int) -> None:
        for number, processes in cases[place :: len(launchers)]:
            try:
                tally.ends[fuzz.render(launchers[place], number, processes)] += 1
            except Fault as fault:
                tally.faults.append((number, str(fault)))
                print(f"case {number}: {fault}", flush=True)

    with ThreadPoolExecutor(PROCESSES) as pool:
        for made in [pool.submit(render, place) for place in range(len(launchers))]:
            made.result()
    for launcher in launchers:
        launcher.close()
    return tally


def show(fuzz: Fuzz, number: int) -> None:
    """One case again: its files, what the commands print, what becomes of its images."""
    one = fuzz.case(number)
    for name, data in one.files.items():
        print(f"--- {name}\n{data.decode('utf-8', 'replace')}")
    print("--- arguments:", *one.arguments)
    tally = fuzz.look_at(range(number, number + 1))
    print(tally)
    if tally.to_render:
        print(render_some(fuzz, tally.to_render))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--manifests", type=int, default=100_000)
    parser.add_argument("--renders", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="this one alone, of as many --manifests")
    options = parser.parse_args(arguments)
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="fuzz-models-") as folder:
        most = 1 + options.manifests // MANIFESTS_A_MODEL
        fuzz = Fuzz(options.seed, tiny_models(Path(folder), options.seed, most))
        if options.case is not None:
            show(fuzz, options.case)
            return 0
        planned = look_at_all(fuzz, options.manifests)
        sample = sorted(planned.to_render)
        random.Random(options.seed).shuffle(sample)
        made = render_some(fuzz, sample[: options.renders])
    faults = [*planned.faults, *made.faults]
    print(json.dumps({"planned": planned.ends, "rendered": made.ends, "faults": len(faults)}))
    for number, _ in faults[:1]:
        again = f"--manifests {options.manifests} --seed {options.seed} --case {number}"
        print(f"again: python tests/fuzz.py {again}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
