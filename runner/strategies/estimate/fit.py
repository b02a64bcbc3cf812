"""What a strategy would need on a machine: an estimate, before anything is loaded.

Weights are counted: from the files' headers, and for tensor parallel on a model without weights.
The rest is estimated, for the largest image of the plan, and called an estimate where it is shown:

- the transformer's activations: batch × tokens × width × 12 numbers. Twelve: the residual stream
  with its normed copy and the attention's output (4), queries, keys and values (3), the hidden
  layer of the MLP with what is joined to it (5). Context parallel divides all of it by the degree,
  tensor parallel the last 8. Guidance by a negative prompt is a second call, not a larger one.
- the decoder's activations: batch × pixels × channels of its last wide layer × 4 numbers; × 9 for
  decoders of causal 3-D convolutions, which pad in time and keep what they have seen. Measured
  with Qwen-Image's: 3.38 GiB at 1024², 13.5 GiB at 2048², in bfloat16. No strategy divides them.
- the larger of both counts, since one ends before the other begins; and 2 GiB for the device's
  context, its libraries and the allocator.

Where device_map puts what, the same function says that places it (places.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.errors import StrategyError
from runner.launch.devices import Machine
from runner.model.configs import ModelConfigs
from runner.strategies.checks.conditions import PlannedImage
from runner.strategies.estimate.places import Part, by_use, held, parts_of, placed
from runner.units import DTYPE_BYTES, GIB, gib

__all__ = [
    "LEFT_FREE",
    "OVERHEAD",
    "Estimate",
    "JobSize",
    "in_components",
    "in_phases",
    "replica_sizes",
    "sharing_matrices",
    "sharing_tokens",
    "whole",
    "with_host",
]

OVERHEAD = 2 * GIB
NUMBERS_A_TOKEN = 12
DIVIDED_BY_TENSOR = 8
NUMBERS_A_PIXEL = 4
CAUSAL_3D = ("AutoencoderKLQwenImage", "AutoencoderKLWan")
NUMBERS_A_PIXEL_CAUSAL_3D = 9
DEFAULT_TOKENS, DEFAULT_WIDTH, DEFAULT_CHANNELS = 4608, 4096, 256
LEFT_FREE = 0.8  # the share of a GPU's free memory that device_map fills: the rest is for images


@dataclass(frozen=True, slots=True)
class JobSize:
    """A model and the largest image that it makes: all sizes in bytes."""

    configs: ModelConfigs
    dtype: str
    components: Mapping[str, int]  # the weights of each
    denoising: int  # activations of the transformer
    decoding: int  # activations of the decoder

    @classmethod
    def of(
        cls,
        configs: ModelConfigs,
        dtype: str,
        components: Mapping[str, int],
        batch_size: int,
        images: Iterable[PlannedImage],
    ) -> "JobSize":
        tokens = pixels = 0
        seen = None
        for image in images:
            if image.parameters is seen:
                continue  # images that share their parameters have one size
            seen = image.parameters
            height, width = configs.size(seen)
            pixels = max(pixels, height * width)
            count = configs.image_tokens(seen)
            text = configs.text_tokens(seen) or 0
            tokens = max(tokens, DEFAULT_TOKENS if count is None else count + text)
        batch = batch_size * DTYPE_BYTES[dtype]
        width, channels = configs.width(DEFAULT_WIDTH), configs.decoder_channels(DEFAULT_CHANNELS)
        is_causal = configs.decoder_class in CAUSAL_3D
        numbers = NUMBERS_A_PIXEL_CAUSAL_3D if is_causal else NUMBERS_A_PIXEL
        return cls(
            configs,
            dtype,
            components,
            denoising=batch * tokens * width * NUMBERS_A_TOKEN,
            decoding=batch * pixels * channels * numbers,
        )

    @property
    def weights(self) -> int:
        return sum(self.components.values())

    @property
    def largest(self) -> int:
        """Weights of the largest component."""
        return max(self.components.values())

    @property
    def denoiser(self) -> int:
        """Weights of the denoiser."""
        return self.components.get(self.configs.denoiser, 0)

    @property
    def activations(self) -> int:
        """At their most, on a single device."""
        return max(self.denoising, self.decoding)

    def parts(self) -> list[Part]:
        """What can lie on devices of its own, by the shapes of the components; the sizes are those
        of the files. A component whose configs are not at hand is one part. Raises ModelError."""
        import torch

        dtype, found = getattr(torch, self.dtype), []
        known = by_use(self.configs)
        for name in (*known, *(self.components.keys() - known)):
            size = self.components.get(name, 0)
            parts = [Part(name, "", 1, is_block=False)]
            if name in known and name != "vae":  # which is one part anyhow
                parts = parts_of(self.configs, name, dtype)
            counted = sum(part.size for part in parts)
            found += [part._replace(size=size * part.size // counted) for part in parts]
        return found


@dataclass(frozen=True, slots=True)
class Estimate:
    """A strategy's needs on one machine. Sizes in bytes, for the fullest device of a replica."""

    ranks_per_replica: int  # one device a rank; for device_map devices of a replica
    replicas: int
    weights: int
    activations: int
    headroom: int
    why: str = ""
    on_host: int = 0  # weights in host memory, of each replica

    @classmethod
    def on(
        cls,
        machine: Machine,
        ranks: int,
        weights: int,
        activations: int,
        why: str = "",
        on_host: int = 0,
    ) -> "Estimate":
        headroom = machine.memory - weights - activations - OVERHEAD
        short = f"{gib(-headroom)} short" if headroom < 0 else ""
        return cls(
            ranks, machine.devices // ranks, weights, activations, headroom, short or why, on_host
        )

    @property
    def fits(self) -> bool:
        return self.headroom >= 0


def replica_sizes(machine: Machine) -> list[int]:
    """From 2 devices to all, as many as divide the machine."""
    return [count for count in range(2, machine.devices + 1) if machine.devices % count == 0]


def whole(job: JobSize, machine: Machine) -> Estimate:
    """The whole model on each device."""
    return Estimate.on(machine, 1, job.weights, job.activations)


def in_components(job: JobSize, machine: Machine) -> Estimate | None:
    """As device_map places the components on the fewest devices that hold all of them; on all where
    none do. None where they are not held without the host's memory."""
    parts, found = job.parts(), None
    for count in replica_sizes(machine):
        made = _spread(job, parts, machine, count, int(machine.memory * LEFT_FREE))
        if made is not None and not made.on_host:
            found = made
            if made.fits:
                break
    return found


def with_host(job: JobSize, machine: Machine) -> tuple[Estimate, int] | None:
    """As device_map places the components on all devices and in host memory, and how much of each
    device it may fill so that images have room, too. None where that is too little."""
    full = min(int(machine.memory * LEFT_FREE), machine.memory - job.activations - OVERHEAD)
    made = _spread(job, job.parts(), machine, machine.devices, full) if full > 0 else None
    return (made, full) if made is not None and made.on_host else None


def _spread(
    job: JobSize, parts: Sequence[Part], machine: Machine, count: int, full: int
) -> Estimate | None:
    """Over so many devices, each filled up to `full` bytes, and the host. None where even then
    there is no room."""
    devices = range(count)
    try:
        places = placed(parts, {**dict.fromkeys(devices, full), "cpu": job.weights})
    except StrategyError:
        return None
    weights = held(parts, places)
    denoiser, decoder = ({*places.get(name, {}).values()} for name in (job.configs.denoiser, "vae"))

    def activations(device: int) -> int:
        return max(job.denoising * (device in denoiser), job.decoding * (device in decoder))

    fullest = max(devices, key=lambda device: weights.get(device, 0) + activations(device))
    on_host = weights.get("cpu", 0)
    why = "components whole, on different devices"
    if on_host:
        why = f"{gib(on_host)} of the weights in host memory (slower)"
    elif any("" not in of for of in places.values()):
        why = "components split over the devices"
    held_there, needed = weights.get(fullest, 0), activations(fullest)
    return Estimate.on(machine, count, held_there, needed, why, on_host=on_host)


def in_phases(job: JobSize, machine: Machine) -> Estimate:
    """One device, on which encoders, denoiser and decoder take turns; the decoder's weights are
    there while the latents are made too."""
    decoder, checker = (job.components.get(name, 0) for name in ("vae", "safety_checker"))
    encoders = job.weights - job.denoiser - decoder - checker
    denoising, decoding = job.denoiser + decoder, decoder + checker
    phases = ((encoders, 0), (denoising, job.denoising), (decoding, job.decoding))
    why = "one phase at a time; weights are read again for every group of images"
    return Estimate.on(machine, 1, *max(phases, key=sum), why)


def sharing_tokens(job: JobSize, degree: int, machine: Machine) -> Estimate:
    """Context parallel: every device holds the whole model."""
    activations = max(job.denoising // degree, job.decoding)
    why = "each device holds the whole model"
    return Estimate.on(machine, degree, job.weights, activations, why)


def sharing_matrices(job: JobSize, degree: int, share: int, machine: Machine) -> Estimate:
    """Tensor parallel: every device holds a share of the transformer, in bytes, and all else."""
    weights = job.weights - job.denoiser + share
    undivided = NUMBERS_A_TOKEN - DIVIDED_BY_TENSOR
    part = (undivided + DIVIDED_BY_TENSOR / degree) / NUMBERS_A_TOKEN
    activations = max(int(job.denoising * part), job.decoding)
    why = f"{share / max(1, job.denoiser):.3f} of the transformer"
    return Estimate.on(machine, degree, weights, activations, why)
