"""The `init` command: a manifest to begin with, from a list of prompts."""

import itertools
import json
from pathlib import Path

import yaml

from runner.errors import LaunchError
from runner.manifest.sources.folder import inner_folders
from runner.manifest.sources.guess import guess
from runner.manifest.sources.prompt_list import PromptList
from runner.manifest.sources.spec import File
from runner.say import answer, cut, is_utf8
from runner.units import counted, first_few

__all__ = ["init"]

LOOKED_AT = 100  # prompts, for what they have
# Names of data that often are parameters. Others may mean something else by them, so what they are
# is only proposed.
OFTEN = {
    "w": "width",
    "h": "height",
    "neg": "negative_prompt",
    "cfg_scale": "guidance_scale",
    "image_id": "id",
    "key": "id",
    "uid": "id",
}
TEXT = """\
# {count} in {name}{data}
# All keys are in docs/manifest.md; `runner schema` prints them for editors.
model: {model}
# dtype: bfloat16                # float32 if not given; most models want bfloat16 on GPUs
{prompts}
# variations: 4                  # images of each prompt
# seed: {{per: prompt, start: 42}} # 42 alone: image number i gets 42 + i; drawn if not given
# parameters: {{height: 1024, width: 1024, num_inference_steps: 30}}
# output: {{dir: outputs/{stem}, name: "{template}"}}
"""


def init(path: Path, model: str) -> None:
    """Write NAME.yaml into the current folder, for a list of prompts NAME. Raises ManifestError for
    a list that cannot be read, LaunchError where there is such a manifest."""
    if not path.exists():
        raise LaunchError(f"{path}: no such file or folder")
    target = Path(f"{path.resolve().stem}.yaml")
    spec, prompts = guess(path, str(path))
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(_text(spec, prompts, path, model))
    except FileExistsError:
        raise LaunchError(f"{target}: is there; remove it, or write the manifest by hand") from None
    column = spec.columns.get("prompt")
    origin = f", from the column {column}" if column else ""
    answer(f"{target}: {counted(len(prompts), 'prompt')}{origin}; next: runner plan {target}")
    if path.is_dir() and (inner := inner_folders(path)):
        answer(f"left out: the .txt files in {first_few(inner)}; add these folders as sources")


def _text(spec: File, prompts: PromptList, path: Path, model: str) -> str:
    looked_at = list(itertools.islice(prompts, LOOKED_AT))
    names = list(dict.fromkeys(name for item in looked_at for name in item.meta))
    has_ids = any(item.id for item in looked_at)
    data = f"; data that go along: {cut(', '.join(names), 200)}" if names else ""
    return TEXT.format(
        count=counted(len(prompts), "prompt"),
        name=_line(path.name),
        data=_line(data),
        model=_yaml(model),
        prompts=_prompts(spec, names),
        stem=_line(path.stem),
        template="{id}_{variation:02}" if has_ids else "{prompt_index:05}_{variation:02}",
    )


def _prompts(spec: File, names: list[str]) -> str:
    """The source, and what its data may be besides."""
    values = spec.model_dump(exclude_defaults=True)
    ordered = {"file": values.pop("file"), **values}
    lines = ["prompts:", *(f"  {key}: {_yaml(value)}" for key, value in ordered.items())]
    likely = {OFTEN[name]: name for name in names if name in OFTEN}
    if likely:
        lines.append(
            f"  # columns: {_yaml({**spec.columns, **likely})}    # if these are what they seem"
        )
    lines.append("  # select: {first: 10}          # a part of the list, to begin with")
    return "\n".join(lines)


def _yaml(value: object) -> str:
    """A value in one line of YAML."""
    text = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _line(text: str) -> str:
    """A name in a comment."""
    return text if text.isprintable() and is_utf8(text) else json.dumps(text)
