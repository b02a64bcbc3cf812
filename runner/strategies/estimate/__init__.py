"""How many bytes a job takes on a machine, as far as configs and file headers say.

Imports checks, model and what stands below it, never a strategy. No weight is read.
"""
