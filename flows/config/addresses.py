"""Addresses in a config: of databases and servers, whose passwords are in no dump of it."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainSerializer

from adaptive_runtime.base.errors import HIDDEN, without_passwords

Address = Annotated[str, Field(min_length=1), PlainSerializer(without_passwords, return_type=str)]
"""An address that may have a password. Logs, parameters, keys and stored configs are made of dumps, which have `***` for it."""

POSTGRES = ("postgresql", "postgresql+psycopg")


def _of_postgres(address: str) -> str:
    if urlsplit(address).scheme not in POSTGRES:
        raise ValueError(f"'{without_passwords(address)}'; allowed: null, or postgresql+psycopg://USER@HOST/NAME")
    return _complete(address)


def _complete(address: str) -> str:
    if f":{HIDDEN}@" in address:
        raise ValueError(f"its password is '{HIDDEN}', as stored configs hide one; give the address anew")
    return address


LockAddress = Annotated[Address, AfterValidator(_of_postgres)]
TrackingUri = Annotated[Address, AfterValidator(_complete)]
