"""A batch of tasks → images: load the pipeline, call it, judge the results, write them.

Imports folder and what stands below it. The folder where torch is at home.
"""
