"""The `verify` command: are these the images of that manifest?

Every file is read whole and held against the journals and the plan. A sample is made again and
compared, pixel by pixel.
"""

import collections
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import ExitCode, FolderError
from runner.folder.audit import (
    DELETE,
    MOVE,
    REGENERATE,
    RUN,
    Audit,
    Fault,
    audit_images,
    audit_metadata,
    audit_others,
)
from runner.folder.paths import OutputFolder, os_errors_as_refusals
from runner.launch.stop import Stop
from runner.launch.world import World
from runner.manifest.load import Loaded
from runner.model import files as model
from runner.prepare.look import Look, look
from runner.units import counted, first_few

if TYPE_CHECKING:
    from runner.render.comparison import Comparison

__all__ = ["Verified", "verify"]

SHOWN = 50  # faults
REMEDIES = {
    DELETE: "delete {files}, then run the job again: it makes them anew",
    RUN: "run the job again: it makes or writes what is gone or wrong: {files}",
    REGENERATE: "run the job with --regenerate: it makes anew or removes {files}",
    MOVE: "delete {files}, or move it elsewhere",
}


@dataclass(slots=True)
class Verified:
    """What was found, in words and for programs."""

    folder: Path
    images: int
    audit: Audit
    tiers: Mapping[int, str]  # of the sample: what its records promise
    sample: dict[int, "Comparison"] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        is_different = any(one.verdict == "different" for one in self.sample.values())
        if self.audit.faults or is_different:
            return ExitCode.FAILED
        return ExitCode.INCOMPLETE if self.audit.missing else ExitCode.COMPLETE

    def lines(self) -> Iterator[str]:
        yield from map(str, self.audit.faults[:SHOWN])
        if more := len(self.audit.faults) - SHOWN:
            yield from [f"… and {counted(more, 'more fault')}"] if more > 0 else []
        good, missing = len(self.audit.good), self.audit.missing
        parts = [f"{good} of {counted(self.images, 'image')} in {self.folder} as they should be"]
        if missing:
            parts.append(f"{missing} missing")
        if self.audit.faults:
            parts.append(counted(len(self.audit.faults), "fault"))
        yield "; ".join(parts)
        yield from self._remedies()
        if self.sample:
            yield from self._sample_lines()

    def _remedies(self) -> Iterator[str]:
        for remedy, words in REMEDIES.items():
            names = dict.fromkeys(f.file for f in self.audit.faults if f.remedy == remedy)
            if names:
                yield f"to mend: {words.format(files=first_few([*names]))}"

    def _sample_lines(self) -> Iterator[str]:
        for index, found in self.sample.items():
            if found.verdict != "exact":
                yield f"image {index}: {found} (its record says {self.tiers[index]})"
        verdicts = collections.Counter(found.verdict for found in self.sample.values())
        counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
        some = counted(len(self.sample), "image")
        yield f"made again: {some} ({first_few([*self.sample])}): {counts}"

    def values(self) -> dict[str, Any]:
        return {
            "exit_code": int(self.exit_code),
            "images": self.images,
            "good": len(self.audit.good),
            "missing": self.audit.missing,
            "faults": [fault._asdict() for fault in self.audit.faults],
            "sample": [
                {"index": index, "reproducibility": self.tiers[index], **found._asdict()}
                for index, found in self.sample.items()
            ],
        }


@os_errors_as_refusals()
def verify(loaded: Loaded, output: Path, sample: int, world: World, stop: Stop) -> Verified:
    """Look at every image, and make a sample again. Raises RefusedError where there is nothing to
    verify, or where the model is not here."""
    folder = OutputFolder(output, loaded.manifest.output)
    folder.check()
    seen = look(loaded, folder)
    if seen.recorded is None:
        raise FolderError(f"{output}: no run has begun this folder, so there is nothing to verify")
    survey = seen.survey(trusts_journals=True)
    for index, done in survey.adopted.items():
        if index not in seen.record.done:  # the journals are gone: the images speak for themselves
            seen.record.add_done(index, done)
    found = audit_images(folder, seen.plan, seen.fingerprints, seen.record, seen.cause)
    found.faults += [
        Fault(path.name, "is beyond the end of the list", REGENERATE) for path in survey.beyond
    ]
    found.faults += audit_others(folder, seen.plan)
    if not seen.live:  # a running job writes it at its end
        bad = {fault.file for fault in found.faults}
        found.faults += audit_metadata(folder, seen.plan, seen.record, bad)
    known = [index for index in found.good if index in seen.record.done]
    chosen = sorted(random.SystemRandom().sample(known, min(sample, len(known))))
    records = {index: seen.record.done[index].made for index in chosen}
    tiers = {index: str(made.get("reproducibility", "nothing")) for index, made in records.items()}
    verified = Verified(output, len(seen.plan), found, tiers)
    if chosen:
        verified.sample = _compared(seen, seen.recorded.strategy, records, world, stop)
    return verified


def _compared(
    seen: Look, strategy: Any, records: Mapping[int, Any], world: World, stop: Stop
) -> dict[int, "Comparison"]:
    """How near each image of the sample is to the same image, made again."""
    from runner.render.again import made_again
    from runner.render.comparison import Comparison, compare, pixels_of
    from runner.render.results import Failure

    spec, found = seen.manifest.model, {}
    manifest = seen.manifest.model_copy(update={"strategy": strategy})
    folder = model.local_folder(spec) or model.download(spec)
    for index, result in made_again(manifest, seen.plan, folder, records, world, stop):
        if isinstance(result, Failure):
            found[index] = Comparison("different", words=f"it fails now: {result.error}")
        else:
            path = seen.folder.image(seen.plan.task(index))
            found[index] = compare(result.pixels, pixels_of(path), manifest.dtype)
    return dict(sorted(found.items()))
