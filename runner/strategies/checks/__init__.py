"""What must hold before weights load, and what would work where it does not.

Imports model and what stands below it, never a strategy: a strategy asks, a check answers.
"""
