"""Output folders that machines share, at a URL: stages, tables and measured SubNets, and who works which stage."""
