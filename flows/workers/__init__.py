"""Worker processes that evaluate SubNets, by Dask. They import `process` alone, and load what its tasks name."""
