"""Lists of prompts in files, folders and data sets: a module per kind of record.

Records → fields by name (`records.py` and its kinds) → prompts (`columns.py`), as one sequence that
need not fit in memory (`prompt_list.py`); `open.py` finds the kind.

Imports the rest of manifest and what stands below.
"""
