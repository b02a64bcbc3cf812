"""Random manifests for fuzz.py: right ones by the schema, then spoilt a little or a lot.

A tree of a manifest has `Map` in place of dict, so that a key may come twice, and `Raw` for a text
that is written as it is. The same seed makes the same case.
"""

import copy
import json
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from runner.manifest.prompts import RESERVED
from runner.manifest.schema import Manifest
from runner.model.signature import PipelineCall, pipeline_call

__all__ = ["Case", "TinyModel", "case"]

PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR4nGNsYIAAJgaKGAAmCACQXTClHgAAAABJRU5ErkJggg=="
)
SCHEMA = Manifest.model_json_schema()

RAW = (
    *("no", "on", "Yes", "~", "null", "TRUE", "007", "0x10", "0o17", "0b11", "1_000", "12:30:45"),
    *("2024-01-01", "4e0", "1e3", "-1e-3", "1e999", ".inf", "-.Inf", ".nan", "NaN", "Infinity"),
    *("3.10", "+1", "-0", ".5", "5.", "1e308", "1e-320", "9" * 30, "9" * 200, f"1.{'9' * 400}"),
    *("=", "<<", "*nobody", "&a x", "*a", "!!int 3", "!!float 1", "!!str 5", "!!null ''", "!own x"),
    *("!!binary aGk=", "!!python/object/apply:os.getcwd []", "!!set {a}", "!!omap []", "|", ">-"),
    *("? a", "- a", "a: b", "a # b", "@home", "%TAG", "`x`", "{", "}", "[", "]", ",", "'", '"'),
    *(
        '"\\ud83e"',
        '"\\ud83e\\udd8a"',
        '"\\x00"',
        '"\\e[2J"',
        "''",
        '""',
        "\t",
        "a\tb",
        "#",
        "--- ",
    ),
)
TEXTS = (
    *("a cat", "a red fox in the snow", "the moon over a green hill by the sea", "a", " ", ""),
    *(
        "Ça va ?",
        "狐",
        "🦊 👩‍👩‍👧",
        "a\nb",
        "a\r\nb",
        "\u202egnp.exe",
        "\x1b[2J",
        "a\x00b",
        "\ufeffa",
    ),
    *(
        "{0.__class__} %s ${HOME}",
        "<b>x</b>",
        "$(touch pwned)",
        "'; DROP TABLE",
        "\ud800",
        "x" * 5000,
    ),
    *(
        "a: b",
        "- a",
        "# a",
        "yes",
        "12",
        "a (cat:1.3) [dog] {x|y}",
        "a cat " * 100,
        "\u2028",
        "\x85",
    ),
)
WORDS = (
    *("demo", "auto", "default", "64x64", "1024x768", "float16", "torch.bf16", "cpu", "cuda", "x"),
    *("file://a", "s3://a/b", "~", "~/a", "../a", "a/b/c", ".", "/dev/null", "/proc/1/a", "a.png"),
    *("Qwen/Qwen-Image", "a" * 300, "no-such-model", "./nothing", "model.safetensors", "a.gguf"),
)
NUMBERS = (
    *(
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        16,
        32,
        64,
        77,
        100,
        512,
        1000,
        1024,
        -1,
        10**6,
        2**31,
        2**63 - 1,
        2**63,
    ),
    *(-(2**63), 10**30, 0.0, -0.0, 0.1, 0.5, 1.0, 1.5, 4.5, 7.0, -3.0, 1e10, 1e300, 5e-324),
)
LISTS = (
    *([], [[]], [1], [0.5], [1, 2], [64, 64], [32, 32], [1.0, 0.5], [0.9, 0.1], [999, 500], [0, 1]),
    *([1.5, "a", None], ["a"], ["a", "b"], [True], [[1, 2], [3]], [None], [0] * 1000),
)
# One manifest in so many has another value there than the plain one.
RARITY = {"model": 60, "prompts": 10, "compile": 200, "parameters": 60}
ENDINGS = (".txt", ".jsonl", ".JSONL", ".json", ".csv", ".tsv", ".parquet", ".md", "")


class Map(list[tuple[Any, Any]]):
    """A mapping as (key, value) pairs."""


# Keys whose values are no text of any kind.
KNOWN = {
    "dir": ("out", "made/here"),
    "pipeline": ("text-to-image", "image-to-image", "inpaint", "FluxImg2ImgPipeline"),
    "inputs": (".", "none"),
}


class Raw(str):
    """A scalar that is written without quotes."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A saved tiny pipeline, and parameters that make its call fast."""

    folder: Path
    class_name: str
    parameters: dict[str, Any]
    own: dict[str, Any] = field(default_factory=dict)
    negative: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """Files to write, the manifest `job.yaml` among them, and arguments of the command line."""

    files: dict[str, bytes]
    arguments: list[str]


def case(seed: str, models: Sequence[TinyModel]) -> Case:
    return _Maker(Random(seed), models).case()


class _Maker:
    def __init__(self, random: Random, models: Sequence[TinyModel]) -> None:
        self.random = random
        self.model = random.choice(models)
        self.call = pipeline_call(self.model.class_name)
        self.files: dict[str, bytes] = {}

    def case(self) -> Case:
        """Most are nearly right: only those reach what comes after the schema."""
        tree = self.right()
        times = self.random.choice((0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 10))
        for _ in range(times):
            self.spoil(tree)
        data = self.written(tree).encode("utf-8", "surrogatepass")
        if self.is_rare(15):
            data = self.torn(data)
        arguments = []
        while self.is_rare(15):
            arguments += ["--set", self.assignment()]
        return Case({**self.files, "job.yaml": data}, arguments)

    def is_rare(self, one_in: int) -> bool:
        return self.random.randrange(one_in) == 0

    # --- a right manifest ------------------------------------------------------------------------

    def right(self) -> Map:
        values: dict[str, Any] = {"model": str(self.model.folder), "seed": 7, "output": "out"}
        if self.is_rare(20):
            values["model"] = "demo"
        values["parameters"] = self.parameters(self.model.parameters)
        values["prompts"] = self.prompts()
        for name, part in SCHEMA["properties"].items():
            if self.is_rare(RARITY.get(name, 40)):
                values[name] = self.by_schema(part, name)
        pairs = [*values.items()]
        self.random.shuffle(pairs)
        return Map((key, _mapped(value)) for key, value in pairs)

    def parameters(self, fast: dict[str, Any]) -> dict[str, Any]:
        values = dict(fast)
        if self.model.negative and self.is_rare(3):
            values["negative_prompt"] = self.random.choice(TEXTS[:9])
        while self.call is not None and not self.is_rare(3):
            name = self.random.choice([*self.call.arguments])
            is_usable = self.call.can_be_written(name) and name not in RESERVED
            if is_usable or self.is_rare(30):
                values[name] = self.argument(self.call, name)
        if self.is_rare(12):
            values["num_images_per_prompt"] = self.random.choice((1, 2, 3))
        return values

    def argument(self, call: PipelineCall, name: str) -> Any:
        """Mostly a value that has the argument's type."""
        for _ in range(20):
            value = self.value()
            if call.takes(name, value) or self.is_rare(30):
                return value
        return call.values.get(name)

    def prompts(self) -> Any:
        return [self.prompt() for _ in range(self.random.choice((1, 1, 2, 2, 3, 5)))]

    def prompt(self) -> Any:
        text = self.random.choice(TEXTS[: 3 if self.random.random() < 0.9 else None])
        if not self.is_rare(4):
            return text
        item: dict[str, Any] = {"prompt": text}
        if self.is_rare(2):
            item["seed"] = self.random.choice((0, 5, 2**63 - 1))
        if self.is_rare(2):
            item["parameters"] = self.parameters(self.model.own)
        if self.is_rare(4):
            self.files["in.png"] = PNG
            item["image"] = self.random.choice(("in.png", ["in.png"], "./in.png", "none.png"))
        return item

    def by_schema(self, part: dict[str, Any], name: str = "") -> Any:
        """A value that the schema takes, or nearly so."""
        if "$ref" in part:
            title = part["$ref"].rpartition("/")[2]
            if title == "PromptFile":
                return {"file": self.prompt_file()}
            return self.by_schema(SCHEMA["$defs"][title], name)
        if choices := part.get("anyOf") or part.get("oneOf"):
            return self.by_schema(self.random.choice(choices), name)
        if "const" in part or "enum" in part:
            return self.random.choice(part.get("enum") or [part["const"]])
        return self.of_type(part, name)

    def of_type(self, part: dict[str, Any], name: str) -> Any:
        low, high = part.get("minimum", 0), part.get("maximum", 2**63)
        match part.get("type"):
            case "integer":
                whole = [n for n in NUMBERS if isinstance(n, int) and low <= n <= high]
                return self.random.choice(whole)
            case "number":
                return self.random.choice([n for n in NUMBERS if low <= n <= high])
            case "boolean":
                return self.is_rare(2)
            case "null":
                return None
            case "string":
                return self.random.choice(KNOWN.get(name, WORDS + TEXTS))
            case "array":
                return [self.by_schema(part["items"]) for _ in range(self.random.randrange(4))]
            case "object":
                return self.object(part)
        return self.value()

    def object(self, part: dict[str, Any]) -> dict[str, Any]:
        known, needed = part.get("properties", {}), part.get("required", [])
        names = [name for name in known if name in needed or self.is_rare(2)]
        values = {name: self.by_schema(known[name], name) for name in names}
        if inner := part.get("additionalProperties"):
            for _ in range(self.random.randrange(3)):
                values[str(self.random.choice(WORDS))] = self.by_schema(inner)
        return values

    def prompt_file(self) -> str:
        name = "list" + self.random.choice(ENDINGS[: 2 if self.random.random() < 0.7 else None])
        lines = [self.line(name) for _ in range(self.random.randrange(5))]
        data = self.random.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines)
        if not self.is_rare(20):
            self.files[name] = data.encode("utf-8", "surrogatepass")
        if self.is_rare(8):
            self.files[name] = self.torn(self.files.get(name, b""))
        return name

    def line(self, name: str) -> str:
        if name.endswith(".txt"):
            return self.random.choice(TEXTS)
        item = self.prompt()
        text = json.dumps(item, ensure_ascii=self.is_rare(2))
        return text if not self.is_rare(8) else self.random.choice((*RAW, '{"prompt": "a"', "[1]"))

    # --- spoil it --------------------------------------------------------------------------------

    def value(self) -> Any:
        kind = self.random.randrange(12)
        if kind < 4:
            return self.random.choice(NUMBERS)
        if kind < 6:
            return self.random.choice((True, False, None))
        if kind < 8:
            return self.random.choice(LISTS)
        if kind == 8:
            return self.random.choice(({}, {"a": 1}, {"prompt": "a"}, {"kind": "auto"}, {"1": [2]}))
        return self.random.choice((TEXTS, WORDS)[kind % 2])

    def odd(self) -> Any:
        """Anything."""
        kind = self.random.randrange(12)
        if kind < 5:
            return Raw(self.random.choice(RAW))
        if kind == 5:
            return Raw("[" * self.random.choice((3, 50, 70, 3000)) + "1" + "]" * 70)
        if kind == 6:
            return Raw(
                "&a [" + ", ".join(["*a", "&b {x: 1}", "*b"][: self.random.randrange(4)]) + "]"
            )
        return _mapped(self.value())

    def spoil(self, tree: Map) -> None:
        """Change one place of the tree."""
        mappings = [node for node in _nodes(tree) if isinstance(node, Map)]
        inside = self.random.choice(
            [n for n in _nodes(tree) if isinstance(n, list) and n] or [tree]
        )
        where = self.random.choice(mappings)
        place = self.random.randrange(len(where)) if where else 0
        match self.random.randrange(10):
            case 0 | 1 | 2:
                self.replace(inside)
            case 3 | 4 if where:
                where[place] = (self.misspelt(where[place][0]), where[place][1])
            case 5 if where:
                moved = where.pop(place)
                left = [node for node in _nodes(tree) if isinstance(node, Map)]
                self.random.choice(left).append(moved)
            case 6 if where:
                where.append(
                    (
                        where[place][0],
                        self.random.choice((copy.deepcopy(where[place][1]), self.odd())),
                    )
                )
            case 7 if where:
                del where[place]
            case 8:
                key = self.random.choice((*SCHEMA["properties"], *WORDS, "prompt", "<<", "id", "1"))
                where.append((self.random.choice((key, self.odd())), self.odd()))
            case _ if self.call is not None:
                name = self.random.choice([*self.call.arguments])
                where.append((name, _mapped(self.argument(self.call, name))))

    def replace(self, inside: list[Any]) -> None:
        place = self.random.randrange(len(inside)) if inside else -1
        if place < 0:
            return
        old = inside[place][1] if isinstance(inside, Map) else inside[place]
        new = self.random.choice((self.odd(), self.odd(), [old], Map([("a", old)])))
        inside[place] = (inside[place][0], new) if isinstance(inside, Map) else new

    def misspelt(self, key: Any) -> Any:
        if not isinstance(key, str) or not key:
            return key
        place = self.random.randrange(len(key))
        letter = self.random.choice(("", key[place] * 2, "x", "-", " ", "É", key[place].upper()))
        return key[:place] + letter + key[place + 1 :]

    def torn(self, data: bytes) -> bytes:
        """Change bytes of a file."""
        place = self.random.randrange(len(data) + 1)
        some = (
            b"\x00",
            b"\xff\xfe",
            b"\t",
            b"\r",
            b"\n",
            b": ",
            b"- ",
            b"\xe9",
            b"#",
            b"'",
            b'"',
            b"{",
        )
        match self.random.randrange(8):
            case 0:
                return data[:place]
            case 1 | 2 | 3:
                return data[:place] + self.random.choice(some) + data[place:]
            case 4:
                return data.replace(b"\n", self.random.choice((b"\r\n", b"\r", b"\n\n", b"\n\t")))
            case 5:
                start = (b"\xef\xbb\xbf", b"---\n", b"%YAML 1.2\n---\n", b"a: 1\n---\n", b"\xff")
                return self.random.choice(start) + data
            case 6:
                codec = self.random.choice(("utf-16", "latin-1", "utf-16-be", "utf-7"))
                return data.decode(errors="replace").encode(codec, "replace")
            case _:
                return bytes(self.random.randrange(256) for _ in range(place % 200))

    def assignment(self) -> str:
        """A --set argument."""
        path = [
            self.random.choice((*SCHEMA["properties"], "parameters.height", "prompts.0", "x", ""))
        ]
        if self.is_rare(3):
            path.append(self.random.choice(("id", "kind", "height", "file", "", "start", "a")))
        text = self.flow(self.odd()) if self.is_rare(2) else self.flow(_mapped(self.value()))
        words = ".".join(path) + self.random.choice(("=", "=", "=", "")) + text
        return re.sub(r"[\x00\ud800-\udfff]", "", words)  # which no command line has

    # --- write it --------------------------------------------------------------------------------

    def written(self, node: Any, indent: str = "") -> str:
        """YAML in block style, or in flow style below."""
        if not isinstance(node, list) or not node or (indent and self.is_rare(3)):
            return f"{indent}{self.flow(node)}\n"
        lines = ""
        for item in node:
            head = f"{self.flow(item[0])}:" if isinstance(node, Map) else "-"
            value = item[1] if isinstance(node, Map) else item
            if isinstance(value, list) and value:
                lines += f"{indent}{head}\n{self.written(value, indent + '  ')}"
            else:
                lines += f"{indent}{head} {self.flow(value)}\n"
        return lines

    def flow(self, node: Any) -> str:
        if isinstance(node, Raw):
            return node
        if isinstance(node, Map):
            return "{" + ", ".join(f"{self.flow(k)}: {self.flow(v)}" for k, v in node) + "}"
        if isinstance(node, list):
            return "[" + ", ".join(map(self.flow, node)) + "]"
        if isinstance(node, str):
            is_plain = re.fullmatch(r"[A-Za-z/][\w /.-]*", node) and not self.is_rare(4)
            return node if is_plain else json.dumps(node, ensure_ascii=self.is_rare(5))
        return json.dumps(node)  # a number, true, false, null


def _mapped(value: Any) -> Any:
    """The value with `Map` for its mappings; all its lists are new ones."""
    if isinstance(value, dict):
        return Map((key, _mapped(inner)) for key, inner in value.items())
    return [*map(_mapped, value)] if isinstance(value, list) else value


def _nodes(node: Any) -> list[Any]:
    below = [value for _, value in node] if isinstance(node, Map) else node
    return (
        [node, *(n for value in below for n in _nodes(value))] if isinstance(node, list) else [node]
    )
