"""Proof to a device that another device was sent by a coordinator with its token; the other device never sees the token."""

import hashlib
import hmac

PURPOSE = b"values for the SubNet "


def proof_of(token: str, digest: str) -> str:
    """HMAC-SHA256 (RFC 2104) of a SubNet's digest by a device's token: its holder may give values of that SubNet to the device.

    It allows nothing else, and the token cannot be derived from it.
    """
    return hmac.new(token.encode(), PURPOSE + digest.encode(), hashlib.sha256).hexdigest()
