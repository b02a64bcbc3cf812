"""What rank 0 does before the work: look at the folder, check the model, find batch sizes, tell.

Imports render and what stands below it.
"""
