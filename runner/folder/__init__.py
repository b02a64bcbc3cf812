"""The output folder: its paths, whole files, journals, the lock, the survey and the reports.

Imports plan, manifest and what stands below them. No torch.
"""
