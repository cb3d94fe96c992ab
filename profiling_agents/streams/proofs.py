"""How a device sees that another device comes from a home that has its token, without the token going through that device."""

import hashlib
import hmac

PURPOSE = b"values for the SubNet "


def proof_of(token: str, digest: str) -> str:
    """HMAC-SHA256 (RFC 2104) of a SubNet's digest by a device's token: who has it may give values of that SubNet to the device.

    It allows nothing else, and the token does not follow from it.
    """
    return hmac.new(token.encode(), PURPOSE + digest.encode(), hashlib.sha256).hexdigest()
