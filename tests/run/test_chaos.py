"""A short run of chaos.py; `make chaos` runs it longer."""

import subprocess
import sys

import pytest
from support import ROOT
from support.jobs import ENVIRONMENT


@pytest.mark.slow
def test_some_random_faults() -> None:
    command = [sys.executable, "tests/chaos.py", "--faults", "15", "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"faults": 15' in done.stdout
