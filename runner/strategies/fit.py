"""What each strategy would need on a machine, and which one to take: an estimate, before anything
is loaded.

Weights are counted: from the files' headers, and for tensor parallel on a model without weights.
The rest is estimated, for the largest image of the plan, and called an estimate where it is shown:

- the transformer's activations: batch × tokens × width × 12 numbers. Twelve: the residual stream
  with its normed copy and the attention's output (4), queries, keys and values (3), the hidden
  layer of the MLP with what is joined to it (5). Context parallel divides all of it by the degree,
  tensor parallel the last 8. Guidance by a negative prompt is a second call, not a larger one.
- the decoder's activations: batch × pixels × channels of its last wide layer × 4 numbers. No
  strategy divides them.
- the larger of both counts, since one ends before the other begins; and 2 GiB for the device's
  context, its libraries and the allocator.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runner.launch.devices import Machine
from runner.model.configs import ModelFacts, takes_padded_heads
from runner.strategies.base import AskedImage
from runner.strategies.sizes import tensor_parallel_bytes, tensor_parallel_degrees

__all__ = ["OVERHEAD", "Row", "Work", "rows"]

GIB = 2**30
OVERHEAD = 2 * GIB
NUMBERS_A_TOKEN = 12
DIVIDED_BY_TENSOR = 8
NUMBERS_A_PIXEL = 4
DEFAULT_TOKENS, DEFAULT_WIDTH, DEFAULT_CHANNELS = 4608, 4096, 256
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Work:
    """A model and the largest image that it makes: all sizes in bytes."""

    facts: ModelFacts
    dtype: str
    components: Mapping[str, int]  # the weights of each
    denoising: int  # activations of the transformer
    decoding: int  # activations of the decoder

    @classmethod
    def of(
        cls,
        facts: ModelFacts,
        dtype: str,
        components: Mapping[str, int],
        batch_size: int,
        images: Iterable[AskedImage],
    ) -> "Work":
        tokens = pixels = 0
        seen = None
        for image in images:
            if image.parameters is seen:
                continue
            seen = image.parameters
            height, width = facts.size(seen)
            pixels = max(pixels, height * width)
            count = facts.image_tokens(seen)
            tokens = max(tokens, DEFAULT_TOKENS if count is None else count + _text(facts, seen))
        numbers = batch_size * BYTES[dtype]
        return cls(
            facts,
            dtype,
            components,
            denoising=numbers * tokens * facts.width(DEFAULT_WIDTH) * NUMBERS_A_TOKEN,
            decoding=numbers * pixels * facts.decoder_channels(DEFAULT_CHANNELS) * NUMBERS_A_PIXEL,
        )

    @property
    def weights(self) -> int:
        return sum(self.components.values())

    @property
    def phases(self) -> dict[str, int]:
        """Weights of encoding, denoising and decoding, were they apart."""
        parts = {"encode": 0, "denoise": 0, "decode": 0}
        for name, size in self.components.items():
            phase = {self.facts.denoiser: "denoise", "vae": "decode"}.get(name, "encode")
            parts[phase] += size
        return parts


def _text(facts: ModelFacts, parameters: Mapping[str, object]) -> int:
    return facts.text_tokens(parameters) or 0


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy on one machine. Sizes in bytes, for the fullest device of a replica."""

    strategy: str
    settings: Mapping[str, object]  # as a manifest has them
    ranks_per_replica: int  # one device a rank; for device_map devices of a replica
    replicas: int
    weights: int
    activations: int
    headroom: int
    why: str = ""

    @property
    def fits(self) -> bool:
        return self.headroom >= 0


def rows(work: Work, machine: Machine) -> list[Row]:
    """Every strategy that the model and the number of devices allow, the cheapest degrees first."""
    both = max(work.denoising, work.decoding)
    found = [_row("data_parallel", {}, 1, machine, work.weights, both)]
    found += _device_maps(work, machine)
    found += _context_parallels(work, machine)
    found += _tensor_parallels(work, machine)
    return found


def _row(
    strategy: str,
    settings: Mapping[str, object],
    ranks: int,
    machine: Machine,
    weights: int,
    activations: int,
    why: str = "",
) -> Row:
    headroom = machine.memory - weights - activations - OVERHEAD
    replicas = machine.devices // ranks
    short = f"{-headroom / GIB:.1f} GiB short" if headroom < 0 else ""
    return Row(strategy, settings, ranks, replicas, weights, activations, headroom, short or why)


def _device_maps(work: Work, machine: Machine) -> list[Row]:
    """Components whole on the fewest devices that hold them; split over all, where one is larger
    than a device; one after another, on a single device."""
    both = max(work.denoising, work.decoding)
    room = machine.memory - both - OVERHEAD
    found = []
    fullest = None
    for count in range(2, machine.devices + 1):
        if machine.devices % count:
            continue
        fullest = _pack(work.components, count)
        if fullest <= room or count == machine.devices:
            if fullest > room and max(work.components.values()) > room:
                # A component is cut between its blocks; the last device also holds the rest.
                fullest = math.ceil(work.weights / count * 1.05)
                why = "largest component split over the devices"
            else:
                why = "components whole, on different devices"
            settings = {"processes": count}
            found.append(_row("device_map", settings, count, machine, fullest, both, why))
            break
    stages = work.phases
    needs = (
        stages["encode"],
        stages["denoise"] + work.denoising,
        stages["decode"] + work.decoding,
    )
    weights, activations = max(
        zip(stages.values(), (0, work.denoising, work.decoding), strict=True), key=sum
    )
    assert max(needs) == weights + activations
    why = "one phase at a time; weights are read again for every group of images"
    found.append(_row("device_map", {"phases": True}, 1, machine, weights, activations, why))
    return found


def _pack(components: Mapping[str, int], devices: int) -> int:
    """The fullest device after each component, largest first, went to the emptiest."""
    loads = [0] * devices
    for size in sorted(components.values(), reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


def _context_parallels(work: Work, machine: Machine) -> list[Row]:
    if work.facts.plan_of("_cp_plan") is None:
        return []
    heads = work.facts.heads or 1
    return [
        _row(
            "context_parallel",
            {"ulysses_degree": degree},
            degree,
            machine,
            work.weights,
            max(work.denoising // degree, work.decoding),
            "each device holds the whole model",
        )
        for degree in _degrees(machine)
        if takes_padded_heads(heads, degree)
    ]


def _tensor_parallels(work: Work, machine: Machine) -> list[Row]:
    if work.facts.plan_of("_tp_plan") is None:
        return []
    valid = set(tensor_parallel_degrees(work.facts))
    others = work.weights - work.components.get(work.facts.denoiser, 0)
    found = []
    for degree in _degrees(machine):
        if degree not in valid:
            continue
        share = tensor_parallel_bytes(work.facts, degree, work.dtype)
        whole = NUMBERS_A_TOKEN - DIVIDED_BY_TENSOR
        part = (whole + DIVIDED_BY_TENSOR / degree) / NUMBERS_A_TOKEN
        activations = max(int(work.denoising * part), work.decoding)
        why = (
            f"{share / max(1, work.components.get(work.facts.denoiser, 1)):.3f} of the transformer"
        )
        settings = {"degree": degree}
        found.append(
            _row("tensor_parallel", settings, degree, machine, others + share, activations, why)
        )
    return found


def _degrees(machine: Machine) -> list[int]:
    return [count for count in range(2, machine.devices + 1) if machine.devices % count == 0]
