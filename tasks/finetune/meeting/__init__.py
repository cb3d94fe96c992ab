"""Where the ranks and nodes of a training meet: addresses of machines, and stores that listen at one of them alone."""
