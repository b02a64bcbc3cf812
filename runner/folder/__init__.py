"""The output folder: every path in it, whole files, journals, locks, and what they say together.

Imports plan, manifest and what stands below them. No torch.
"""
