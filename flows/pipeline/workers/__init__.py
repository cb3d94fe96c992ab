"""Dask worker processes that evaluate SubNets. They import `process` alone, and load the modules that its tasks name."""
