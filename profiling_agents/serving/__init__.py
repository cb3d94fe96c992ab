"""The service on a device and the relay: routes, gate, lease, queue, stored models."""
