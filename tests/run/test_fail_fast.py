"""A job whose images all fail with one and the same error ends early, and says which."""

import shutil
from pathlib import Path

from support.jobs import Job


def test_the_same_error_from_the_first_image_on_ends_the_job(tmp_path: Path) -> None:
    prompts = [f"prompt {i}" for i in range(40)]
    job = Job(tmp_path, prompts=prompts)
    for processes in (1, 2):
        end = job.run(processes=processes, hooks={"raise": prompts})
        assert end.code == (3 if processes == 1 else 1)
        tried = len(job.failures())
        assert 8 <= tried <= 8 + processes  # each rank may be at one more
        words = "images failed with the same error: ValueError: asked for"
        said = [line for line in end.err.splitlines() if line.startswith("runner:")]
        assert words in said[-1]
        assert end.err.count(words) == 1
        assert job.summary()["outcome"] == "failed"
        assert job.status() == 3
        shutil.rmtree(job.output)


def test_an_image_that_is_made_or_a_limit_of_the_manifests_own_keeps_a_job_going(
    tmp_path: Path,
) -> None:
    prompts = [f"prompt {i}" for i in range(12)]
    job = Job(tmp_path / "one", prompts=prompts)
    job.run(hooks={"raise": prompts[:3] + prompts[4:]})
    assert len(job.failures()) == 11
    job = Job(tmp_path / "two", prompts=prompts, max_failures=11)
    job.run(hooks={"raise": prompts})
    assert len(job.failures()) >= 11  # the count of the writer may lag by an image
