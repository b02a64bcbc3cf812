"""YAML and prompt files → a frozen, strict manifest, or messages about all that is wrong in them.

Imports strategies, since a manifest names one, and what stands below. No torch, no weights.
"""
