"""Output folders that machines share at a URL: stages, tables, measured SubNets, and locks of stages."""
