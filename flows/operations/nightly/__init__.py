"""A run every night, compared with the night before: regressions are reported, other nights are promoted.

A regression is reported in one message: a line in the log, an event in Prefect, and a post to a webhook. A night's page
in Prefect's UI has the verdict, both nights by device, and the changes.
"""

import socket
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event

from flows.config import FlowConfig
from flows.pipeline.pages.publish import cell, code, table
from flows.storage import is_shared
from tasks.base.errors import UserError
from tasks.operations.nightly.page import NightReport, change_of, device_rows, when
from tasks.operations.nightly.records import Finding, Night

EVENT = "autotailor.regressed"
RESOURCE = "autotailor.output-dir"
MOST_FINDINGS = 50
"""Maximum number of findings in the event's payload, the gravest first."""
POST_SECONDS = 10.0
HINT = "put the URL there alone, on one line, or set nightly.webhook_file=null"


def webhook_of(config: FlowConfig) -> str | None:
    """The URL in the file named in the settings; None without one. UserError in one line that does not show the URL."""
    file = config.nightly.webhook_file
    if file is None:
        return None
    where = f"nightly.webhook_file '{file}'"
    try:
        url = file.read_text(encoding="utf-8").strip()
        parts = urlsplit(url)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it holds no URL"
        raise UserError(where, f"cannot be read ({reason})", next_step=HINT) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or len(url.split()) != 1:
        raise UserError(where, "holds no URL", allowed="http:// or https://", next_step=HINT)
    return url


def line_of(night: Night, page: Path) -> str:
    """The night in one line: the regressions and where to look, or that there are none."""
    if night.compared_with is None:
        return f"first night of {night.network} in this output folder: nothing to compare with"
    since = f"since {when(night.compared_with)}"
    if not night.findings:
        return f"nothing regressed {since}; trends: {page}"
    devices = dict.fromkeys(finding.device for finding in night.findings)
    described = [_described(device, [one for one in night.findings if one.device == device]) for device in devices]
    return f"regressed {since}: {'; '.join(described)}; see {page}"


def _described(device: str, findings: list[Finding]) -> str:
    """The findings of a device, the gravest first: the count of each kind, and its first finding."""
    counts = Counter(finding.kind for finding in findings)
    parts = []
    for kind, count in counts.items():
        first = next(finding for finding in findings if finding.kind == kind)
        number = f"{count} {kind}s, the worst: " if count > 1 else f"{kind}: "
        parts.append(f"{number}{first.what} {change_of(first)}")
    return f"{device}: {', '.join(parts)}" if device else ", ".join(parts)


def tell(config: FlowConfig, night: Night, page: Path, webhook: str | None) -> None:
    """Report a regression, inside a flow run. If the webhook fails, this is logged, and the night continues."""
    line, logger = line_of(night, page), get_run_logger()
    logger.error(line)
    at_url = is_shared(config.output_dir)
    place = str(config.output_dir) if at_url else f"{socket.gethostname()}:{config.folder.resolve()}"
    payload: dict[str, Any] = {
        "line": line,
        "network": night.network,
        "night": night.began,
        "compared_with": night.compared_with,
        "page": str(page),
        "findings": [finding.to_json() for finding in night.findings[:MOST_FINDINGS]],
        "findings_in_all": len(night.findings),
    }
    resource = {"prefect.resource.id": f"{RESOURCE}.{place}", "prefect.resource.name": night.network}
    emit_event(EVENT, resource, payload=payload)
    if webhook is not None:
        try:
            httpx.post(webhook, json={"text": line, **payload}, timeout=POST_SECONDS).raise_for_status()
        except httpx.HTTPStatusError as error:
            logger.warning(f"nightly.webhook_file: the address answered with {error.response.status_code}")
        except httpx.HTTPError as error:
            logger.warning(f"nightly.webhook_file: the message was not taken ({type(error).__name__})")


KEY = "nightly"
SHOWN = 20
"""Maximum number of findings and stages listed; the page has all of them."""


def publish_night(report: NightReport, line: str, page: Path) -> None:
    """Publish an artifact of the run. Call it inside a flow."""
    create_markdown_artifact(night_in_short(report, line, page), key=KEY, description="against the night before")


def night_in_short(report: NightReport, line: str, page: Path) -> str:
    """Markdown: the line, findings, devices, changed inputs, and stages."""
    parts = [f"### {cell(line)}", *(cell(note) for note in report.comparison.notes)]
    if findings := report.night.findings[:SHOWN]:
        rows = [[one.device or "–", one.kind, one.what, change_of(one), f"{one.p_value:.1e}"] for one in findings]
        parts.append(table(["device", "what", "", "before → now", "p-value"], rows))
    if devices := device_rows(report):
        parts.append(table(list(devices[0]), [list(row.values()) for row in devices]))
    if report.night.compared_with is not None:
        changed = [f"- {cell(line)}" for line in report.changed] or ["No input changed."]
        parts += ["#### Inputs that changed", "\n".join(changed)]
    if report.stages:
        rows = [
            [change.stage, "worked again" if change.worked else "found complete", "; ".join(change.why)]
            for change in report.stages[:SHOWN]
        ]
        parts.append(table(["stage", "", "because of"], rows))
    return "\n\n".join([*parts, "Trends over all nights are a file to open in a browser:", code(page)])
