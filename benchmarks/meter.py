"""A program, and what its pipeline calls cost: `python meter.py FOLDER PROGRAM ARGUMENT …`.

PROGRAM is a script, or `runner`. Leaves FOLDER/RANK.json: start and end of every call of a FLUX
pipeline (seconds since 1970), when the program ended, CPU seconds from the first call to there, and
the most memory that the process had.
"""

import argparse
import functools
import importlib.abc
import importlib.util
import json
import os
import resource
import runpy
import sys
import time
from typing import Any

import arguments

PIPELINE = "diffusers.pipelines.flux.pipeline_flux"


class Meter(importlib.abc.MetaPathFinder):
    """Times the calls of the pipeline, whenever the program imports it: an import here would change
    what is measured."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, float]] = []
        self.cpu_at_first_call = 0.0

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != PIPELINE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        real = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            real(module)
            module.FluxPipeline.__call__ = self._timed(module.FluxPipeline.__call__)

        spec.loader.exec_module = exec_module
        return spec

    def _timed(self, call: Any) -> Any:
        import torch

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.calls:
                self.cpu_at_first_call = time.process_time()
            start = time.time()
            try:
                return call(*args, **kwargs)
            finally:
                if torch.accelerator.is_available():
                    torch.accelerator.synchronize()
                self.calls.append((start, time.time()))

        return timed

    def report(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "ended": time.time(),
            "cpu_s": time.process_time() - self.cpu_at_first_call,
            "cpu_before_s": self.cpu_at_first_call,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "device_mb": _device_mb(),
        }


def _device_mb() -> float:
    torch = sys.modules.get("torch")
    if torch is None or not torch.accelerator.is_available():
        return 0.0
    return float(torch.accelerator.max_memory_allocated()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=arguments.folder)
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    sys.argv = [options.program, *options.arguments]
    meter = Meter()
    sys.meta_path.insert(0, meter)
    try:
        if options.program == "runner":
            from runner.cli import main as run

            sys.exit(run(options.arguments))
        runpy.run_path(options.program, run_name="__main__")
    finally:
        path = options.folder / f"{os.environ.get('RANK', '0')}.json"
        path.write_text(json.dumps(meter.report()))


if __name__ == "__main__":
    main()
