"""Helpers for the tests: models, launches, jobs, faults."""

import os
from pathlib import Path

__all__ = ["PYTHONPATH", "ROOT", "SUPPORT"]

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent
PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "tests")))  # for processes that tests start
