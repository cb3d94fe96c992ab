"""Rendezvous of ranks and nodes: addresses of machines, and stores that listen on a single address."""
