"""Models that make one image a call: in a batch, the others would change it."""

__all__ = ["one_at_a_time", "takes_references"]

PADDED = "pads its texts to the longest of a batch, and takes the padding for text"
NEGATIVE = "takes no list of negative prompts"
# Read in diffusers 0.42.1, and tried: in a batch images were others, or none.
PIPELINES = {
    "CogView4Pipeline": PADDED,
    "CogView4ControlPipeline": PADDED,
    "Kandinsky3Pipeline": PADDED,
    "GlmImagePipeline": PADDED,  # the texts that are to be drawn
    "StableDiffusionPanoramaPipeline": "pairs texts with the wrong images in a batch",
    "LuminaPipeline": "cuts the negative prompt to the length of the longest text of a batch",
    "AmusedPipeline": "takes one generator, not a list",
    "KandinskyCombinedPipeline": NEGATIVE,
    "KandinskyV22CombinedPipeline": NEGATIVE,
}
# A list of input images belongs to one prompt here, so that a batch has no place for its own.
WITH_REFERENCES = (
    "Flux2KleinKVPipeline",
    "Flux2KleinPipeline",
    "Flux2Pipeline",
    "FluxKontextPipeline",
    "QwenImageEditPlusPipeline",
    "QwenImageEditPipeline",
)
SCHEDULERS = {
    "DPMSolverSDEScheduler": "draws the noise of all images of a batch from one seed",
}


def takes_references(pipeline_class: str) -> bool:
    """Whether a pipeline's input images are what its prompt is about, one or several: then images
    that have any are made one at a time."""
    return pipeline_class in WITH_REFERENCES


def one_at_a_time(pipeline_class: str, scheduler_class: str) -> str:
    """Why images of this pipeline with this scheduler are made one at a time, in words that follow
    the class's name; empty where batches of any size make the same images."""
    if pipeline_class in PIPELINES:
        return f"{pipeline_class} {PIPELINES[pipeline_class]}"
    if scheduler_class in SCHEDULERS:
        return f"{scheduler_class} {SCHEDULERS[scheduler_class]}"
    return ""
