"""Pictures of an output folder: the page report.html, its thumbnails, and contact sheets.

`columns` holds what the page shows, and `page` writes it with the files in template/.
Imports folder and what stands below it.
"""
