"""`runner plan` over an output folder."""

from pathlib import Path

import pytest
from support.bench import Bench
from support.launch import stamps

from runner.cli import main
from runner.commands import plan as planned


def test_a_plan_knows_what_is_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.plan()["finished"] == 0
    bench.run(limit=3)
    before = stamps(bench.output)
    plan = bench.plan()
    assert (plan["finished"], plan["images"], plan["remarks"]) == (3, 5, [])
    bench.values["prompts"][1] = "a blue fox"
    plan = bench.plan()
    assert plan["finished"] == 2
    assert "a run would be refused" in plan["remarks"][0]
    assert '(image 1: prompts[1].prompt "a red fox" → "a blue fox")' in plan["remarks"][0]
    assert stamps(bench.output) == before
    monkeypatch.setattr(planned, "LOOK_AT", 4)  # a long list is planned in seconds
    plan = bench.plan()
    assert plan["finished"] is None
    assert "was not looked at: more than 4 images" in plan["remarks"][0]


# Case 55.
def test_remarks_are_printed_by_validate_plan_and_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: demo\nseed: 1\nprompts:\n  - a cat #5 on a wall\n")
    remark = f'{job}:4: YAML takes "#5 on a wall" as a comment; quote the whole text if it is part'
    for command in ("validate", "plan", "run"):
        assert main([command, str(job)]) == 0
        output = capfd.readouterr()
        assert remark in output.out + output.err, command


def test_a_parameter_without_effect_is_remarked_once(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.values["parameters"] |= {"negative_prompt": "fog"}
    (remark,) = bench.plan()["remarks"]
    assert "negative_prompt has no effect: FluxPipeline uses it with a true_cfg_scale" in remark
    bench.run(limit=1)
    assert capsys.readouterr().err.count("negative_prompt has no effect") == 1
