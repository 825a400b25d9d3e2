"""The entry point of EMR Serverless job runs: TOPICBERG_EMR_ENTRY_POINT is where this file lies.

A file of its own in a folder of its own: Python puts a script's folder first on its path, and names
like ``assets/platform.py`` would hide Python's own modules.
"""

from assets.emr_job import main

main()
