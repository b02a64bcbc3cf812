"""What makes a strategy run: changes to libraries, calls in phases, what other packages support.

Imports base, estimate, checks and what stands below them, never a kind of strategy.
"""
