"""Health of an installation's services: each gets a request that it can answer only if it works."""

from flows.operations.health.databases import postgres_health, sqlite_health
from flows.operations.health.servers import guarded_health, mlflow_health, prefect_health, worker_health
from flows.operations.health.state import ServiceHealth

__all__ = [
    "ServiceHealth",
    "guarded_health",
    "mlflow_health",
    "postgres_health",
    "prefect_health",
    "sqlite_health",
    "worker_health",
]
