"""YAML and prompt files → frozen, strict settings, and the words for what is wrong in them.

Imports strategies and what stands below it: a manifest names one. No torch, no weights.
"""
