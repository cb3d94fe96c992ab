"""The formats in which the SubNets of a bundle serve on this device."""

from collections.abc import Callable

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import CHAIN_FORMATS, BundleFormat, OpenBundle
from adaptive_runtime.bundle.chains import require_runtime


def serving_formats(
    bundle: OpenBundle, wanted: BundleFormat | None, tell: Callable[[str], None]
) -> tuple[BundleFormat, ...]:
    """The wanted format alone; None: the formats with known latencies here, the one in which they were measured first.

    Formats whose runtime is not installed are left out; `tell` receives one line for each runtime. AdaptiveError if no format
    is
    left, or the bundle has no SubNets in the wanted one.
    """
    manifest, where = bundle.manifest, str(bundle.folder)
    asked = manifest.known_formats if wanted is None else (wanted,)
    there = {form for subnet in manifest.subnets for form in subnet.nets}
    if not (asked := tuple(form for form in asked if form in there)):
        missing = wanted or manifest.own_format
        raise AdaptiveError(where, f"has no SubNets in {missing}", allowed=", ".join(manifest.runs))
    missing_runtimes: dict[str, list[BundleFormat]] = {}
    for form in asked:
        try:
            require_runtime(CHAIN_FORMATS[form], where)
        except AdaptiveError as error:
            missing_runtimes.setdefault(str(error), []).append(form)
    left_out = {form for forms in missing_runtimes.values() for form in forms}
    if len(left_out) == len(asked):
        require_runtime(CHAIN_FORMATS[asked[0]], where)
    for line, forms in missing_runtimes.items():
        tell(f"SubNets in {', '.join(forms)} are left out: {line}")
    return tuple(form for form in asked if form not in left_out)
