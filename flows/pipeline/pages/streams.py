"""Facts on streams, for the log and the summary in Prefect."""

from flows.pipeline.pages.facts import Facts
from tasks.base.schemas.streams import StreamedNetwork
from tasks.report.streams.terminal import events_text


def streamed(result: StreamedNetwork) -> Facts:
    """The error of each method on the whole stream."""
    errors = {f"error, {one.method}": f"{one.error_percent:.1f} %" for one in result.methods}
    return {"images": str(result.images), **errors}


def events(result: StreamedNetwork) -> Facts:
    """Events of guards, and the methods left out."""
    told = {f"events, {one.method}": events_text(one) for one in result.methods if one.events}
    return told | {f"left out, {method}": why for method, why in result.left_out.items()}
