"""Jobs with the fake renderer in real processes: start, wait, kill, and check the folder."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from PIL import Image

from support import PYTHONPATH, SUPPORT

HOOKED = SUPPORT / "hooked.py"
FORCED = "forcefully exiting via"  # torchrun, before it kills
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "RANK", "WORLD_SIZE"))},
    "PYTHONPATH": PYTHONPATH,
    "OMP_NUM_THREADS": "1",
}


def empty_model(folder: Path) -> Path:
    """A FLUX pipeline with every file that one needs, and nothing in them."""
    weights = len(b"{}").to_bytes(8, "little") + b"{}"
    parts = {
        "scheduler": ("diffusers", "FlowMatchEulerDiscreteScheduler", "scheduler_config.json", ""),
        "vae": ("diffusers", "AutoencoderKL", "config.json", "diffusion_pytorch_model"),
        "text_encoder": ("transformers", "CLIPTextModel", "config.json", "model"),
        "tokenizer": ("transformers", "CLIPTokenizer", "tokenizer.json", ""),
        "text_encoder_2": ("transformers", "T5EncoderModel", "config.json", "model"),
        "tokenizer_2": ("transformers", "T5TokenizerFast", "tokenizer.json", ""),
        "transformer": (
            *("diffusers", "FluxTransformer2DModel", "config.json", "diffusion_pytorch_model"),
        ),
    }
    for name, (_, _, config, base) in parts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / config).write_text("{}")
        if base:
            (folder / name / f"{base}.safetensors").write_bytes(weights)
    index = {name: [library, kind] for name, (library, kind, _, _) in parts.items()}
    text = json.dumps({"_class_name": "FluxPipeline", **index})
    (folder / "model_index.json").write_text(text)
    return folder


class Job:
    """A manifest with its output folder, and ways to launch it."""

    def __init__(
        self, folder: Path, images: int = 8, inputs: Path | None = None, **manifest: Any
    ) -> None:
        """`inputs` is a folder for input images, one a prompt, which are drawn if they are not
        there."""
        self.folder = folder
        self.output = Path(manifest.pop("output", folder / "out"))
        self.manifest = folder / "job.yaml"
        model = empty_model(folder / "model")
        self.prompts = manifest.pop("prompts", [f"prompt {i}" for i in range(images)])
        values = {"model": str(model), "seed": 7, **manifest, "prompts": self.prompts}
        if inputs is not None:
            values |= {"pipeline": "image-to-image", "prompts": with_inputs(self.prompts, inputs)}
        self.manifest.write_text(yaml.safe_dump({**values, "output": str(self.output)}))

    def command(
        self, *arguments: str, launcher: Sequence[str] = (), hooks: dict[str, Any] | None = None
    ) -> list[str]:
        marked = {"marks": str(self.folder), **(hooks or {})}
        words = [str(HOOKED), json.dumps(marked), str(self.manifest)]
        return [*(launcher or [sys.executable]), *words, *arguments]

    def start(
        self,
        *arguments: str,
        processes: int = 1,
        hooks: dict[str, Any] | None = None,
        restarts: int = 0,
        cold: bool = False,
    ) -> Any:
        """Like subprocess.Popen. Forked from a process with all imports; with `cold`, a new Python
        process, as users start it."""
        if not cold:
            from support.forked import Served

            marked = {"marks": str(self.folder), **(hooks or {})}
            return Served(["run", str(self.manifest), *arguments], marked, processes, restarts)
        launcher = torchrun(processes, restarts) if processes > 1 or restarts else []
        return subprocess.Popen(
            self.command(*arguments, launcher=launcher, hooks=hooks),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **options: Any) -> "Ended":
        return ended(self.start(*arguments, **options))

    def status(self, *arguments: str) -> int:
        """What `status --exit-code` answers."""
        command = [sys.executable, "-m", "runner", "status", str(self.manifest), "--exit-code"]
        return subprocess.run(
            [*command, *arguments], env=ENVIRONMENT, cwd=self.folder, capture_output=True
        ).returncode

    def images(self) -> list[str]:
        return sorted(path.name for path in self.output.glob("*.png"))

    def wait_for_images(self, count: int, timeout_s: float = 120.0) -> None:
        wait_for(lambda: len(self.images()) >= count, timeout_s)

    def hold(self, *indices: int) -> None:
        """A process that comes to one of these images stays at it, until `release` or a stop."""
        for index in indices:
            (self.folder / f"hold-{index}").touch()

    def release(self, *indices: int) -> None:
        for index in indices:
            (self.folder / f"hold-{index}").unlink()

    def wait_for_process_at(
        self, index: int, *, after: psutil.Process | None = None, timeout_s: float = 120.0
    ) -> psutil.Process:
        """The process that began this image; `after`: the one that began it before."""
        mark = self.folder / f"begun-{index}"
        others = {"", str(after.pid) if after else ""}
        wait_for(lambda: mark.exists() and mark.read_text() not in others, timeout_s)
        return psutil.Process(int(mark.read_text()))

    def pixels(self) -> dict[str, int]:
        """Image name → CRC of its pixels. Raises where an image is not whole."""
        return {name: crc_of(self.output / name) for name in self.images()}

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.output / "summary.json").read_text()))

    def failures(self) -> list[dict[str, Any]]:
        path = self.output / "failures.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def metadata(self) -> list[dict[str, Any]]:
        lines = (self.output / "metadata.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def journal(self) -> Iterator[dict[str, Any]]:
        """Every whole line of all journals."""
        for path in sorted((self.output / ".runner" / "journal").glob("*.jsonl")):
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    yield json.loads(line)

    def partial_files(self) -> list[Path]:
        """Temporary files, empty files, images that do not decode."""
        found = [*self.output.rglob("*.part"), *self.output.rglob("*.claim")]
        for path in self.output.glob("*.png"):
            try:
                crc_of(path)
            except (OSError, SyntaxError):
                found.append(path)
        return found


def with_inputs(prompts: Sequence[str], folder: Path) -> list[dict[str, str]]:
    found = []
    for place, prompt in enumerate(prompts):
        path = folder / f"{place}.png"
        if not path.exists():
            folder.mkdir(exist_ok=True)
            Image.new("RGB", (16, 16), (place, place, 99)).save(path)
        found.append({"prompt": prompt, "image": str(path)})
    return found


class Ended:
    """What a launch left: exit code and words."""

    def __init__(self, process: Any, timeout_s: float) -> None:
        self.out, self.err = process.communicate(timeout=timeout_s)
        self.code = process.returncode

    @property
    def was_forced(self) -> bool:
        """Whether torchrun had to kill a rank that did not end within 30 s of its TERM."""
        return FORCED in self.err


def ended(process: Any, timeout_s: float = 120.0) -> Ended:
    """Wait for its end. Kills it and raises TimeoutExpired after `timeout_s`, long for a hang."""
    try:
        return Ended(process, timeout_s)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        raise


def torchrun(processes: int, restarts: int = 0) -> list[str]:
    words = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    return [sys.executable, "-m", "torch.distributed.run", *words]


def print_of(number: int) -> str:
    """Something in the form of a fingerprint."""
    return f"{number:032x}"


def crc_of(path: Path) -> int:
    with Image.open(path) as image:
        image.load()
        return zlib.crc32(np.asarray(image).tobytes())


def wait_for(condition: Callable[[], Any], timeout_s: float = 120.0) -> None:
    """Raises AssertionError after `timeout_s`, which only a hang should reach."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def workers(agent: int) -> list[psutil.Process]:
    """The processes under a launcher."""
    try:
        return psutil.Process(agent).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_tree(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):  # it has ended since the caller looked
        for process in [*workers(pid), psutil.Process(pid)]:
            kill(process)


def kill(process: psutil.Process, number: int = signal.SIGKILL) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


@contextmanager
def running(process: Any) -> Iterator[Any]:
    """Kill the process and its children, if they still run when the test leaves."""
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_tree(process.pid)
            process.wait()
