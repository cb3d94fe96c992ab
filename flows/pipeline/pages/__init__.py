"""A run on Prefect's pages: lines of its log, summaries of stages, tables of winners, the report."""
