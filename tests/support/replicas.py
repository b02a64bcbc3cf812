"""Jobs for replicas of several ranks, and the float images that they made."""

import json
import textwrap
from pathlib import Path

import numpy as np

from support.launches import Ended, Launcher

PROMPTS = ("a red fox", "the moon", "a dog under the sun")


NEGATIVE = "a cat on the snow"


def write(
    folder: Path, model: Path, strategy: str, more: str = "", prompts=PROMPTS, negative=NEGATIVE
) -> Path:
    """A manifest whose texts, the negative one too, have odd numbers of tokens with Qwen-Image."""
    folder.mkdir(exist_ok=True)
    path = folder / "job.yaml"
    text = f"""
        model: {model}
        strategy: {strategy}
        output: {folder / "out"}
        seed: 3
        parameters: {{height: 64, width: 64, num_inference_steps: 2, max_sequence_length: 16,
          true_cfg_scale: 2.0, negative_prompt: {negative}}}
        prompts: {json.dumps(list(prompts))}
        """
    path.write_text(textwrap.dedent(text) + more)
    return path


def floats(folder: Path) -> list[np.ndarray]:
    return [np.load(path) for path in sorted(folder.glob("float-*.npy"))]


def render(ranks: Launcher, world_size: int, path: Path, *patches: str, limit=None) -> Ended:
    arguments = [path] if limit is None else [path, "--limit", limit]
    return ranks(world_size, *arguments, patches=patches, folder=path.parent)


# Where no "anything" variant helps, the texts must have as many tokens as divide: 16 each.
EVEN = ("a red fox in the snow", "a red dog under the sun", "the moon on a green hill")


EVEN_NEGATIVE = "a red cat on the snow"
