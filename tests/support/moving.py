"""A list that moves under a folder of finished images, and kills in the middle of it.

python tests/support/moving.py --images 1000 --kills 20 --seed 1
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from support.launch import lines, pixels, stamps, summary
from support.launches import Launcher

POINTS = ("before", "linked", "moved", "recorded")  # where in a move the process is killed
SIGKILLED = -signal.SIGKILL
PATCHES = ("support.moving:fake", "support.moving:die_while_moving")


def fake() -> None:
    """In a rank: pixels without a model."""
    from support.hooked import hook

    hook({})


def die_while_moving() -> None:
    """In a rank: SIGKILL at a point of the move that kill.json names."""
    from runner.folder import files
    from runner.folder.journal import Journal

    wanted = json.loads(Path("kill.json").read_text())
    count = 0
    link, move, done = files._link, files.move, Journal.done

    def die(point: str) -> None:
        if count == wanted["move"] and point == wanted["point"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted_move(*given: Any) -> None:
        nonlocal count
        count += 1
        die("before")
        move(*given)
        die("moved")

    def counted_link(*given: Any) -> None:
        link(*given)
        die("linked")

    def counted_done(*given: Any) -> None:
        done(*given)
        die("recorded")

    files.move, files._link, Journal.done = counted_move, counted_link, counted_done  # type: ignore[method-assign]


@dataclass
class Moved:
    """What came of it."""

    before: int  # images
    kept: int
    wanted: int  # images that were to be made
    made: int
    killed: int


def write(path: Path, prompts: list[str], variations: int) -> Path:
    values = {
        "model": "demo",
        "seed": {"per": "prompt"},
        "variations": variations,
        "parameters": {"height": 16, "width": 16},
        "prompts": prompts,
    }
    path.write_text(json.dumps(values))
    return path


def by_fingerprint(folder: Path) -> dict[str, tuple[str, tuple[int, int]]]:
    """Of each image its pixels, modification time and inode."""
    made, found = stamps(folder), pixels(folder)
    rows = lines(folder / "metadata.jsonl")
    assert {row["file_name"] for row in rows} == made.keys()
    return {
        row["fingerprint"]: (str(found[row["file_name"]]), made[row["file_name"]]) for row in rows
    }


def move_list(
    ranks: Launcher, folder: Path, images: int, kills: int, seed: int, *, shuffles: bool
) -> Moved:
    """Make images of two variations; put a prompt first, take three out, add a variation; kill the
    run that moves; compare with a folder that was made at once."""
    draw, output = random.Random(seed), folder / "out"
    prompts = [f"prompt {number}" for number in range(images // 2)]
    run: list[object] = [write(folder / "job.yaml", prompts, 2), "--output", output]
    assert ranks(1, *run, patches=PATCHES[:1]).codes == [0]
    before = by_fingerprint(output)
    for place in sorted(draw.sample(range(len(prompts)), 3), reverse=True):
        del prompts[place]
    if shuffles:
        draw.shuffle(prompts)
    prompts.insert(0, "the new one")
    write(folder / "job.yaml", prompts, 3)
    untouched = stamps(output)
    assert ranks(1, *run, patches=PATCHES[:1]).codes == [2]
    assert stamps(output) == untouched
    killed = 0
    for left in range(kills, 0, -1):
        number = draw.randrange(1, max(2, 3 * images // (2 * kills + 2)))
        (folder / "kill.json").write_text(
            json.dumps({"move": number, "point": draw.choice(POINTS)})
        )
        ended = ranks(1, *run, "--regenerate", patches=PATCHES, folder=folder)
        killed += ended.codes == [SIGKILLED]
        assert ended.codes in ([SIGKILLED], [0]), (left, ended.words)
    assert ranks(1, *run, "--regenerate", patches=PATCHES[:1]).codes == [0]
    after, report = by_fingerprint(output), summary(output)
    assert (report["outcome"], report["done"]) == ("complete", 3 * len(prompts))
    kept = before.keys() & after.keys()
    assert all(before[key] == after[key] for key in kept)
    assert not [*output.glob(".*.moving"), *output.glob(".*.part")]
    fresh = folder / "fresh"
    assert ranks(1, run[0], "--output", fresh, patches=PATCHES[:1]).codes == [0]
    assert pixels(output) == pixels(fresh)
    made = sum(row["fingerprint"] not in before for row in lines(output / "metadata.jsonl"))
    return Moved(len(before), len(kept), 3 * len(prompts) - 2 * (len(prompts) - 1), made, killed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shuffle", action="store_true")
    options = parser.parse_args()
    ranks = Launcher()
    with tempfile.TemporaryDirectory() as folder:
        print(
            move_list(
                ranks,
                Path(folder),
                options.images,
                options.kills,
                options.seed,
                shuffles=options.shuffle,
            )
        )
    ranks.close()


if __name__ == "__main__":
    main()
