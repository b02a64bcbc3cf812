"""The processes of one launch: ranks, devices, shared store, heartbeats, shards, stop requests.

Imports only errors, units and say. The only folder that reads the environment.
"""
