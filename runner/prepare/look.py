"""Look at a manifest and its output folder: what was recorded, what is planned, what is there.

`run`, `plan` and `status` all start from a `Look`. Each thing is read once, when it is first
needed: a plan of a million images does not wait for journals that nobody asks for.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from runner.errors import ManifestError, ModelError, Problem
from runner.folder.differences import differences
from runner.folder.journal import journal_launch, merge
from runner.folder.merged_record import MergedRecord
from runner.folder.names import check_names
from runner.folder.owners import live_launches
from runner.folder.paths import OutputFolder
from runner.folder.recorded_prompts import has_recorded
from runner.folder.refuse import refuse_to_draw
from runner.folder.scan import scan
from runner.folder.survey import Survey, survey
from runner.manifest.load import Loaded, parse
from runner.manifest.resolve import Resolved, decide, fill, versions
from runner.manifest.schema import Manifest
from runner.manifest.sources.prompt_list import Inline
from runner.model import files as model
from runner.model import lora_files
from runner.model.json_file import read_json
from runner.plan import Fingerprints, Plan
from runner.prepare.inputs import check_inputs_there
from runner.units import first_few

__all__ = ["Look", "look", "recorded_in"]


@dataclass(frozen=True)
class Look:
    """What a manifest and its output folder say together."""

    loaded: Loaded
    folder: OutputFolder
    recorded: Manifest | None  # as an earlier run resolved it
    resolved: Resolved  # what the manifest leaves open, as far as it was recorded

    def with_revision(self) -> "Look":
        """The same with the model's revision, which the hub may be asked for. Raises ModelError,
        and OfflineError where nobody can be asked."""
        spec = self.loaded.manifest.model.model_copy(update={"revision": self.resolved.revision})
        loras = fill(self.loaded.manifest, self.resolved).loras
        update = {
            "revision": model.resolve(spec),
            "lora_revisions": {lora.own_name: lora_files.resolve(lora) for lora in loras},
        }
        return dataclasses.replace(self, resolved=self.resolved.model_copy(update=update))

    def with_versions(self) -> "Look":
        """The same with the versions of the packages that make the images."""
        update = {"versions": versions()}
        return dataclasses.replace(self, resolved=self.resolved.model_copy(update=update))

    @property
    def is_drawn(self) -> bool:
        """Whether the seed is new: neither the manifest nor an earlier run names one."""
        return self.loaded.manifest.seed is None and self.recorded is None

    @property
    def is_other_list(self) -> bool:
        """Whether the prompts are not those that were recorded last."""
        if isinstance(self.loaded.prompts, Inline):
            return self.recorded is None or self.recorded.prompts != self.loaded.manifest.prompts
        return not has_recorded(self.folder, self.loaded)

    @functools.cached_property
    def manifest(self) -> Manifest:
        """The manifest with what was resolved filled in."""
        return fill(self.loaded.manifest, self.resolved)

    @functools.cached_property
    def plan(self) -> Plan:
        """Raises ManifestError; FolderError where a seed would be drawn beside finished images."""
        plan = Plan(self.manifest, self.loaded.prompts, self.loaded.root)
        check_inputs_there(plan)
        check_names(plan, self.folder.template)
        if self.is_drawn:
            refuse_to_draw(self.folder, plan)
        return plan

    @functools.cached_property
    def model_files(self) -> dict[str, str]:
        """The hash of each file of a local model."""
        return model.digests(self.manifest.model)

    @functools.cached_property
    def loras(self) -> dict[str, Any]:
        """What each LoRA is, by its name."""
        return lora_files.identities(self.manifest.loras)

    @functools.cached_property
    def fingerprints(self) -> Fingerprints:
        identity = model.identity(self.manifest.model, self.model_files)
        return Fingerprints(self.manifest, identity, self.plan.inputs, self.loras)

    @functools.cached_property
    def record(self) -> MergedRecord:
        """All journals of the folder, merged."""
        return merge(self.folder.journals, len(self.plan))

    @functools.cached_property
    def live(self) -> set[str]:
        """The launches that work on the folder now."""
        return live_launches(self.folder)

    def states(self) -> bytearray:
        """How each image stands, by the journals and the sizes of the files."""
        sizes = scan(self.folder, self.plan).sizes
        return self.record.states(self.plan, self.fingerprints, sizes)

    def survey(self, *, but: str = "", trusts_journals: bool = False) -> Survey:
        """How each image stands. Launch `but` is our own. Files of a journal that ended without its
        last line are read whole, unless it lives or `trusts_journals`."""
        trusted = set(map(journal_launch, self.record.unclean)) if trusts_journals else self.live
        found = survey(
            self.folder,
            self.plan,
            self.fingerprints,
            self.record,
            trusted - {but},
            has_new_names=self.folder.template is not None and self.is_other_list,
        )
        if self.recorded is not None and len(self.record.done):
            names = [one.output.name or "the index" for one in (self.recorded, self.manifest)]
            found.renamed = names[0] if names[0] != names[1] else ""
        if found.changed:
            found.cause = self.cause
        if found.unfit:
            found.reasons = differences(self.folder, self.plan, found)
        return found

    @property
    def cause(self) -> str:
        """Why finished images have another fingerprint than in the plan: names the model's files
        that are not what they were in the last run, as far as it is known."""
        try:
            files = model.changed_files(read_json(self.folder.model), self.model_files)
        except ModelError:
            files = []
        if files:
            return f"{first_few(files)} of the model changed since"
        return "the manifest changed since"


def look(loaded: Loaded, folder: OutputFolder) -> Look:
    """Read what an earlier run recorded in the folder. Raises ManifestError where it is damaged."""
    recorded = recorded_in(folder)
    return Look(loaded, folder, recorded, decide(loaded.manifest, recorded))


def recorded_in(folder: OutputFolder) -> Manifest | None:
    """The manifest as an earlier run resolved it. Raises ManifestError where it is damaged."""
    try:
        return parse(folder.manifest)[0] if folder.manifest.is_file() else None
    except ManifestError as error:
        remedy = (
            "not as the runner wrote it; restore it from a copy, or remove it and run again: each "
            "image knows how it was made"
        )
        raise ManifestError([*error.problems, Problem(str(folder.manifest), remedy)]) from None
