"""Whether a pipeline's call can be made in phases: read from its source, before weights load."""

import inspect
import re
from typing import Any

from runner.model.configs import ModelConfigs

__all__ = ["fault_of_phases", "phases_of"]

# Without these no phase could begin or end.
NEEDED = ("encode_prompt", "prepare_latents")
DECODE = "self.vae.decode("
# A call that looks into the denoiser from outside needs a real one until its end.
HOOK = "register_forward_hook("


def fault_of_phases(configs: ModelConfigs) -> str:
    """Why the call cannot be split; "" where it can."""
    import diffusers

    name = configs.pipeline_class
    pipeline: Any = getattr(diffusers, name, None)
    lacking = [method for method in NEEDED if not hasattr(pipeline, method)]
    if lacking:
        return f"{name} has no {lacking[0]}"
    known = {configs.denoiser, "vae", "safety_checker"}
    others = [
        component
        for component in configs.networks
        if component not in known and not component.startswith("text_encoder")
    ]
    if others:
        return f"it is not known in which phase {name} uses its {others[0]}"
    if not configs.denoiser or "vae" not in configs.networks:
        return f"{name} has no {'vae' if configs.denoiser else 'denoiser'} of its own"
    return _fault_of_source(name, inspect.getsource(inspect.unwrap(pipeline.__call__)))


def phases_of(configs: ModelConfigs) -> list[list[str]]:
    """The components that each phase needs: to encode the texts, to denoise, to decode."""
    encoders = [name for name in configs.networks if name.startswith("text_encoder")]
    checkers = [name for name in configs.networks if name == "safety_checker"]
    return [encoders, ["vae", configs.denoiser], ["vae", *checkers]]


def _fault_of_source(name: str, source: str) -> str:
    """Of the text of a pipeline's `__call__`."""
    encoding, noise = source.rfind("self.encode_prompt("), source.find("self.prepare_latents(")
    if encoding < 0 or noise < 0:
        return f"the call of {name} does not encode its texts first"
    if encoding > noise:
        return f"{name} encodes texts after it has drawn its noise"
    if source.count(DECODE) != 1:
        return f"{name} does not decode in one place"
    used = re.search(r"self\.((?:text_encoder\w*|safety_checker|vae\.encode))\(", source)
    if used:
        return f"{name} uses its {used[1]} outside of the phase for it"
    return f"{name} looks into its denoiser from outside" if HOOK in source else ""
