"""Lists of prompts with odd bytes: each is read, or refused with its row, and never breaks.

python tests/fuzz_lists.py [--files 20000] [--seed 1]
"""

import argparse
import codecs
import collections
import json
import random
import re
import sys
import tempfile
from pathlib import Path

from support.sources import read

from runner.errors import ManifestError

FORMS = ("csv", "tsv", "json", "jsonl", "txt")
WORDS = ["a cat", "", " ", "a fox, and a hen", 'the "sun"', "007", "e\u0301", "x" * 300, "no"]
ODD = ["\x00", "\x1b[31m", "\r", "\n", "\r\n", "\t", '"', "'", ",", ";", "\u2028", "\ufeff"]
ODD += ["\u202e", "\ud800", "{", "[", "]", "}", "\\", "\\u0000", "\\ud800", "NaN"]
ODD += ["1e999", "=cmd()", "--n x"]
PLAIN = ["id", "tag", "note", "caption"]
NAMES = ["seed", "width", "Prompt", "steps", "parameters", "meta", ""]
MARKS = (b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE)
OF_ALL = ("no column", "no prompts", "not a list", "not JSON: Input data was truncated")


def made(random_: random.Random, form: str) -> bytes:
    """The bytes of a list: mostly good, some of them odd."""
    names = ["prompt", *random_.sample(PLAIN, random_.randrange(3))]
    if random_.random() < 0.2:
        names.append(random_.choice(NAMES))
    random_.shuffle(names)
    rows = [{name: _value(random_, name, row) for name in names} for row in range(5)]
    if form in ("csv", "tsv"):
        delimiter = "\t" if form == "tsv" else random_.choice(",;")
        lines = [names, *(row.values() for row in rows)]
        text = "\n".join(delimiter.join(map(_cell, line)) for line in lines)
    elif form == "json":
        text = json.dumps(
            rows, indent=random_.choice((None, 1)), ensure_ascii=random_.random() < 0.5
        )
    elif form == "jsonl":
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    else:
        text = "\n".join(row["prompt"] for row in rows)
    data = bytearray(text.encode("utf-8", errors="surrogatepass"))
    for _ in range(random_.choice((0, 0, 0, 1, 1, 3))):
        _spoil(random_, data)
    return random_.choices(MARKS, (8, 2, 0.2))[0] + bytes(data)


def _value(random_: random.Random, name: str, row: int) -> str:
    if name == "id":
        return f"k{row}"
    word = _word(random_)
    return f"{word}a cat" if name == "prompt" and random_.random() < 0.95 else word


def _word(random_: random.Random) -> str:
    word = random_.choice(WORDS)
    return word + random_.choice(ODD) + word if random_.random() < 0.03 else word


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',;\t"\n\r') else text


def _spoil(random_: random.Random, data: bytearray) -> None:
    """Put odd bytes in, take some out, or cut the end off."""
    place = random_.randrange(len(data) + 1)
    kind = random_.randrange(4)
    if kind == 0:
        odd = random_.choice(ODD).encode("utf-8", errors="surrogatepass")
        data[place:place] = odd
    elif kind == 1:
        data[place : place + 1] = bytes([random_.randrange(256)])
    elif kind == 2:
        del data[place : place + random_.randrange(4)]
    else:
        del data[place:]


def check_places(error: ManifestError) -> None:
    """Every refusal names its row, but for one of the whole file."""
    for problem in error.problems:
        has_row = re.fullmatch(r".*list\.\w+:\d+(: element \d+)?", problem.place)
        of_all = re.match(r".*?list\.\w+: (.*)", problem.message)
        assert has_row or (of_all and of_all[1].startswith(OF_ALL)), problem


def fuzz(folder: Path, files: int, seed: int) -> collections.Counter[str]:
    """Read so many lists. Raises AssertionError for a refusal without its place, and whatever is
    raised besides a refusal."""
    random_, found = random.Random(seed), collections.Counter[str]()
    for number in range(files):
        form = FORMS[number % len(FORMS)]
        path = folder / f"list.{form}"
        path.write_bytes(made(random_, form))
        try:
            prompts = read(path)
            assert [prompts[place] for place in range(len(prompts))] == list(prompts)
            for prompt in prompts:
                json.dumps(prompt, ensure_ascii=False, allow_nan=False).encode()
            found[f"{form} read"] += 1
        except ManifestError as error:
            check_places(error)
            found[f"{form} refused"] += 1
        except BaseException:
            sys.stderr.write(f"file {number}: {path.read_bytes()!r}\n")
            raise
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(Path(folder), options.files, options.seed)
    for kind in sorted(found):
        print(f"{found[kind]:>7} {kind}")


if __name__ == "__main__":
    main()
