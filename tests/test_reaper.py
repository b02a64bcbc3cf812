"""Nothing that tests start outlives them, also when pytest is killed."""

import subprocess
import sys
from pathlib import Path

from support.jobs import ENVIRONMENT, wait_for
from support.reaper import having

# A test with a launch that does not end, and a process that nobody waits for.
INNER = """
import os, subprocess, threading
from pathlib import Path
from support.jobs import Job, wait_for
from support.reaper import NAME, having

def test_that_does_not_end(tmp_path):
    job = Job(tmp_path, 2)
    process = job.start(processes=2, hooks={"seconds": 3600})
    subprocess.run(["sh", "-c", "setsid sleep 3600 &"])
    job.wait_for_process_at(0, timeout_s=300)
    token = os.environ[NAME]
    wait_for(lambda: len(list(having(token))) >= 5, 300)  # the server, torchrun, two ranks, sleep
    Path("token.part").write_text(token)
    Path("token.part").rename(Path(__file__).with_name("token"))
    threading.Event().wait()
"""


def test_processes_end_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(INNER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "support.reaper", str(tmp_path)]
    inner = subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, start_new_session=True)
    try:
        wait_for(lambda: (tmp_path / "token").exists() or inner.poll() is not None, 300)
        token = (tmp_path / "token").read_text()
        assert len(list(having(token))) >= 5
    finally:
        inner.kill()
        inner.wait()
    wait_for(lambda: not list(having(token)))
