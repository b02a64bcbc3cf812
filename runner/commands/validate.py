"""The `validate` command: the manifest and its prompts alone, without model and output folder."""

import shlex

from runner.folder.names import check_names
from runner.manifest.load import Loaded
from runner.manifest.name_template import parse
from runner.plan import Plan
from runner.say import answer
from runner.units import counted

__all__ = ["validate"]


def validate(loaded: Loaded) -> None:
    """Print how much a valid manifest asks for; `load` has refused an invalid one."""
    plan = Plan(loaded.manifest, loaded.prompts, loaded.root)
    name = loaded.manifest.output.name
    check_names(plan, parse(name) if name else None)
    prompts, images = counted(len(loaded.prompts), "prompt"), counted(len(plan), "image")
    path = shlex.quote(str(loaded.path))
    answer(
        f"{loaded.path}: good; {prompts}, {images}; the model was not looked at, next: "
        f"runner plan {path}"
    )
    for remark in loaded.remarks:
        answer(str(remark))
