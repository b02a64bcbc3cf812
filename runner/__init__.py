"""A batch job runner for diffusion models: one YAML manifest in, a folder of images out."""

__version__ = "0.1.0"
