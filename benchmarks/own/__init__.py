"""Six users with networks, data, losses and scores of their own; each script ends in files that keep their budgets."""
