"""A deployed model as a service: the Open Inference Protocol v2 over HTTP, metrics, and a live page.

[The service](docs/runtime_service.md) shows how it is used.
"""
