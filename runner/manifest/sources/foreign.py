"""Prompt files of other tools: recognized, so that their flags do not become part of a prompt; and
the lines of sd-scripts, read."""

import json
import re
from typing import Any

__all__ = ["AS_TEXT", "other_format", "refuse_flags", "sd_scripts_fields"]

FLAG = re.compile(r"(?:^|\s)--([A-Za-z][A-Za-z_]*)(?=[\s=]|$)")
LORAS = "name it under loras in the manifest, and its weight in the prompt: loras: {style: 0.8}"
NETWORK = re.compile(r"<(lora|lyco|hypernet):[^<>]+>")
TEXT_COLUMNS = ("prompt", "prompts", "caption", "captions", "text")
CELL = re.compile(r"\s*\"?[\w .-]{0,40}\"?\s*")

# The flags of sd-scripts' sample prompts → what they are here.
SD_FLAGS = {
    "n": "negative_prompt",
    "w": "width",
    "h": "height",
    "d": "seed",
    "s": "num_inference_steps",
    "l": "guidance_scale",
    "g": "guidance_scale",
}
AS_TEXT = "if it is part of the text, add format: text"


def refuse_flags(text: str) -> None:
    """Raises ValueError for a line with another tool's flags, with how to write it here."""
    if found := FLAG.search(text):
        if found[1] in SD_FLAGS:
            raise ValueError(
                f"--{found[1]} is a flag of sd-scripts; add format: sd-scripts; {AS_TEXT}"
            )
        raise ValueError(
            f"--{found[1]} is a flag of another tool; write parameters in a .jsonl or .csv, as in "
            f'{{"prompt": "a cat", "num_inference_steps": 20}}; {AS_TEXT}'
        )
    if found := NETWORK.search(text):
        raise ValueError(f"{found[0][:40]} would load nothing here; {LORAS}; {AS_TEXT}")


def other_format(text: str) -> str:
    """The format that the first line of a text file shows; "" for plain text."""
    if text.lstrip()[:1] in ("{", "[") and _is_json(text):
        return "jsonl" if text.lstrip()[0] == "{" else "json"
    return "csv" if _is_header(text) else ""


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _is_header(text: str) -> bool:
    """Whether a line is the first one of a table: short names, and one of them for the prompt."""
    for delimiter in ",;\t":
        cells = text.split(delimiter)
        names = [cell.strip().strip('"').lower() for cell in cells]
        if len(cells) > 1 and all(map(CELL.fullmatch, cells)) and set(names) & set(TEXT_COLUMNS):
            return True
    return False


def sd_scripts_fields(text: str) -> dict[str, Any]:
    """`a cat --n low quality --w 832 --d 7`, as sd-scripts reads it: each flag reaches up to the
    next. With both --l and --g the first is the true CFG scale, as for FLUX. Raises ValueError."""
    prompt, *flags = re.split(r"(?:^|\s)--", text)
    found: dict[str, Any] = {}
    for flag in flags:
        name, _, value = flag.partition(" ")
        key = SD_FLAGS.get(name.lower())
        if key is None:
            known = ", ".join(f"--{known}" for known in SD_FLAGS)
            raise ValueError(f"--{name[:20]}: cannot be read here; known are {known}")
        if name.lower() in found:
            raise ValueError(f"--{name}: given twice; keep one")
        found[name.lower()] = value.strip() if key == "negative_prompt" else _number(name, value)
    if network := NETWORK.search(prompt):
        raise ValueError(f"{network[0][:40]} would load nothing here; {LORAS}")
    keys = {**SD_FLAGS, "l": "true_cfg_scale"} if {"l", "g"} <= found.keys() else SD_FLAGS
    return {"prompt": prompt.strip(), **{keys[name]: value for name, value in found.items()}}


def _number(name: str, text: str) -> int | float:
    value = text.strip()
    if re.fullmatch(r"[0-9]{1,99}", value):
        return int(value)
    is_scale = name.lower() in "lg"
    if is_scale and re.fullmatch(r"[0-9]{0,9}\.[0-9]{0,9}", value) and value != ".":
        return float(value)
    wanted = "a number" if is_scale else "a whole number"
    raise ValueError(f"--{name} {value[:20]}: must be {wanted}, 0 or more")
