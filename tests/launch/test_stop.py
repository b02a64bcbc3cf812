"""Stopping: each signal, the stop file, the launcher; nothing is lost and nothing stays behind."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.jobs import ENVIRONMENT, Job, ended, running, wait_for, workers
from support.launch import FAST, free_ports

SLOW = {"seconds": 0.3}
ENDLESS = {"seconds": 3600}


def is_stopped_whole(job: Job, made: int) -> None:
    assert job.partial_files() == []
    assert made <= len(job.images()) < len(job.prompts)
    assert job.status() == 75
    assert job.summary()["outcome"] == "interrupted"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_stops_one_process(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path, 400)
    with running(job.start(hooks=SLOW)) as process:
        job.wait_for_images(2)
        process.send_signal(getattr(signal, name))
        end = ended(process)
    assert end.code == 75
    lines = end.err.splitlines()
    assert all(line.startswith("runner: ") for line in lines), end.err
    assert "interrupted: " in lines[-1]
    is_stopped_whole(job, 2)


def test_torchrun_ends_soon_after_a_term_and_the_next_run_completes(tmp_path: Path) -> None:
    job = Job(tmp_path, 400)
    with running(job.start(processes=2, hooks=SLOW)) as process:
        job.wait_for_images(5)
        children = workers(process.pid)
        process.send_signal(signal.SIGTERM)
        end = ended(process)
    assert not end.was_forced
    assert end.code == 1
    assert not [child for child in children if child.is_running()]
    is_stopped_whole(job, 5)
    again = job.run(processes=2)
    assert again.code == 0
    assert len(job.images()) == 400
    assert job.status() == 0


def test_an_image_that_does_not_fit_is_dropped(tmp_path: Path) -> None:
    job = Job(tmp_path, 4, stop_grace_s=2)
    with running(job.start(hooks=ENDLESS)) as process:
        job.wait_for_process_at(0)
        process.send_signal(signal.SIGTERM)
        assert ended(process).code == 75
    assert job.images() == []


def test_the_deadline_holds_while_the_main_thread_is_in_a_long_call(tmp_path: Path) -> None:
    """A C call that never returns keeps Python's own signal handlers waiting for ever."""
    script = (
        "import ctypes; from runner.launch.stop import Stop; stop = Stop(1.0); stop.install();"
        "print('ready', flush=True); lock = (ctypes.c_char * 64)(); libc = ctypes.CDLL(None);"
        "libc.pthread_mutex_lock(lock); libc.pthread_mutex_lock(lock)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=ENVIRONMENT, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(120) == 75
    finally:
        process.kill()


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal was sent and not yet delivered."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [line.split()[1] for line in status.splitlines() if line[:6] in ("SigPnd", "ShdPnd")]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path, 20, stop_grace_s=7200)  # the image under way would fit
    with running(job.start(hooks=ENDLESS)) as process:
        job.wait_for_process_at(0)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: not is_pending(process.pid, signal.SIGINT))  # two at once would be one
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert ended(process).code == 75
    assert job.partial_files() == []
    assert job.status() == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_stop_while_the_model_loads_is_quick(tmp_path: Path, number: int, processes: int) -> None:
    """Nothing is lost, and the folder is free."""
    job = Job(tmp_path, 4)
    with running(job.start(processes=processes, hooks={"load_s": 60})) as process:
        wait_for(lambda: (job.output / "summary.json").exists())
        time.sleep(1)
        process.send_signal(number)
        end = ended(process, 15)  # of 20 s of grace
    assert end.code != 0
    assert end.err.count("runner: stopping") == 1
    assert "runner: interrupted: 0 of 4 images" in end.err
    assert job.summary()["outcome"] == "interrupted"
    assert not [*(job.output / ".runner" / "locks").glob("*.json")]
    assert job.run().code == 0


def test_a_second_ctrl_c_ends_torchrun_at_once(tmp_path: Path) -> None:
    """It passes the second one on as TERM."""
    job = Job(tmp_path, 20)
    with running(job.start(processes=2, hooks={"seconds": 15})) as process:
        job.wait_for_process_at(0)
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        end = ended(process, 12)  # of 20 s of grace
    assert "the image in work gets up to 20 s; Ctrl-C again ends at once" in end.err
    assert job.partial_files() == []
    assert job.status() == 75


def test_ctrl_c_before_anything_is_ready_is_silent(tmp_path: Path) -> None:
    """It comes while the command line is imported."""
    script = (
        "import os, runpy, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'runner.cli': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting)\n"
        "runpy.run_module('runner', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "job.yaml"], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_during_the_start_is_no_traceback(tmp_path: Path) -> None:
    job = Job(tmp_path, 20)
    with running(job.start(hooks=SLOW, cold=True)) as process:
        wait_for(lambda: len(psutil.Process(process.pid).threads()) > 1)
        process.send_signal(signal.SIGINT)
        end = ended(process)
    assert "Traceback" not in end.err
    assert end.code == 75


def test_the_stop_command_and_a_stale_stop_file(tmp_path: Path) -> None:
    job = Job(tmp_path, 400)
    command = [sys.executable, "-m", "runner", "stop", str(job.manifest)]
    with running(job.start(processes=2, hooks=SLOW)) as process:
        job.wait_for_images(3)
        asked = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
        assert asked.stdout == "asked 1 job to stop\n"
        end = ended(process)
    # torchrun's traceback ends with our message.
    assert "traceback : stopped as asked; run the same command again to go on" in end.err
    is_stopped_whole(job, 3)
    assert (job.output / ".runner" / "stop").exists()
    assert job.run(processes=2).code == 0  # a new launch removes it
    assert not (job.output / ".runner" / "stop").exists()
    asked = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert (asked.stdout, asked.returncode) == (f"no job works on {job.output}\n", 0)


def test_a_stop_reaches_a_job_that_has_just_started(tmp_path: Path) -> None:
    job = Job(tmp_path, 400)
    command = [sys.executable, "-m", "runner", "stop", str(job.manifest)]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stderr is not None
        assert "waiting 10 s" in asking.stderr.readline()
        with running(job.start(hooks=SLOW)) as process:
            assert asking.communicate()[0] == "asked 1 job to stop\n"
            assert ended(process).code == 75


# Case 64: two launches at once, started as the docs say, do not share a port.
def test_a_stop_file_of_one_shard_leaves_the_other_alone(tmp_path: Path) -> None:
    job = Job(tmp_path, 30)
    with (
        running(job.start("--shard", "1/2", processes=2, hooks=ENDLESS)) as one,
        running(job.start("--shard", "2/2", processes=2, hooks=SLOW)) as two,
    ):
        job.wait_for_process_at(0)
        job.wait_for_process_at(1)
        (job.output / ".runner" / "stop-1-of-2").touch()
        assert ended(one).code == 1
        assert ended(two).code == 0
    assert job.status("--shard", "1/2") == 75
    assert job.status("--shard", "2/2") == 0


def test_workers_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    job = Job(tmp_path, 2000)
    with running(job.start(processes=2, hooks=SLOW)) as process:
        job.wait_for_images(4)
        children = workers(process.pid)
        process.kill()
        psutil.wait_procs(children, timeout=60)
        assert not [child for child in children if child.is_running()]
    is_stopped_whole(job, 4)


def test_a_rank_whose_launcher_died_during_its_start_ends(tmp_path: Path) -> None:
    """torch's own client would try the address of the dead agent for two minutes."""
    job = Job(tmp_path, 4)
    port = str(free_ports(1)[0])
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = subprocess.run(
        job.command(),
        env={**ENVIRONMENT, **world, **agent, **where},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 75
    assert "store is out of reach" in done.stderr
    assert job.images() == []


def test_nohup_keeps_its_meaning(tmp_path: Path) -> None:
    job = Job(tmp_path, 8)
    command = ["nohup", *job.command(hooks=SLOW)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    job.wait_for_images(1)
    process.send_signal(signal.SIGHUP)
    assert ended(process).code == 0


@pytest.mark.parametrize("how", ["2>&1 | true", "2>&-", ">&- 2>&-"])
def test_a_reader_that_is_gone_changes_nothing(tmp_path: Path, how: str) -> None:
    path, out = tmp_path / "job.yaml", tmp_path / "out"
    path.write_text(json.dumps({"model": "demo", "prompts": ["a"], "parameters": FAST}))
    words = shlex.join([sys.executable, "-m", "runner", str(path), "--output", str(out)])
    line = f"set -o pipefail; {words} {how}"
    assert subprocess.run(["bash", "-c", line], env=ENVIRONMENT, timeout=60).returncode == 0
    assert (out / "000000.png").exists()


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"model": "demo", "prompts": ["a"]}))
    line = f"{shlex.join([sys.executable, '-m', 'runner', 'validate', str(path)])} > /dev/full"
    done = subprocess.run(["bash", "-c", line], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "runner: standard output: No space left on device\n",
    )
