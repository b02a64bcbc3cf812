"""The processes of one launch: ranks and devices, the shared store, who lives, whose batch is next.

Imports errors, units and say alone. The only folder that reads the environment.
"""
