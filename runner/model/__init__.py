"""A model's files: where they are, what their configs and headers say, and what watches its parts.

Imports launch and what stands below. Weights are never loaded here.
"""
