"""A short run of fuzz.py; `make fuzz` runs it longer."""

import json
import subprocess
import sys

from support import ROOT
from support.jobs import ENVIRONMENT


def test_some_random_manifests() -> None:
    command = [sys.executable, "tests/fuzz.py", "--manifests", "300", "--renders", "3"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert min(found["planned"].values()) > 20
    assert found["rendered"] == {"complete": 3}
