"""The commands that make no image: plan, status, slurm.

Imports prepare and what stands below it; nothing but the command line imports this folder.
"""
