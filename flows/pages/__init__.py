"""What Prefect's pages show of a run: lines of its log, summaries of stages, tables of winners, the report."""
