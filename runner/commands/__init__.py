"""The commands that make no image: validate, plan, status, report, sheet, stop, slurm.

Imports prepare and what stands below it; nothing but the command line imports this folder.
"""
