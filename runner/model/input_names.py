"""Which arguments of pipeline calls are input images, that a manifest names by their files."""

__all__ = ["INPUTS", "is_input"]

# By diffusers' own names. Images of adapters need a model that a manifest cannot name.
INPUTS = (
    "image",
    "mask_image",
    "control_image",
    "mask",
    "control_mask",
    "image_reference",
    "reference_image",
    "last_image",
)


def is_input(name: str) -> bool:
    return name in INPUTS
