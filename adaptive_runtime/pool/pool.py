"""The pool: parts of SubNets in memory, as many as a budget allows; the least recently used goes first.

One thread at a time loads; requests run beside it, and load missing parts. A part that is freed while a request still runs it
is released when that request is done.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.process import give_back, resident_mib
from adaptive_runtime.bundle.bundles import CHAIN_FORMATS, BundledSubNet, BundleFormat, OpenBundle
from adaptive_runtime.bundle.chains import ChainManifest, ExitChain, all_leave_at, require_runtime
from adaptive_runtime.exits import Decider
from adaptive_runtime.pool.prepared import Beside, PartFiles, PreparedFiles, VariantError, failure
from adaptive_runtime.pool.variants import (
    Answerer,
    PlacedRuns,
    PoolPart,
    Variant,
    VariantInference,
    runtime_of,
    scaling_of,
)

LOG = logging.getLogger(__name__)
PROGRAM_MIB = 4.0
"""Assumed largest memory of a session besides weights and activations, until it is measured."""
RESERVE_MIB = 1.0
"""Part of a budget that stays free: the rest of the process, with its requests, varies by half of it."""


class SubNetPool:
    """Parts of a bundle's SubNets. forms: formats in which they may serve. budget_mib: of all together; None: all stay.

    serving: gives the parts that must not be freed. placed: runs SubNets over several devices, by digest; to be set before a
    variant is requested. tell: receives lines for people. prepares: ONNX files are optimised once, by a child process, and kept
    in `cache`, else in the bundle's folder. start_mib: memory of the process before the first SubNet; None: the present memory.
    """

    def __init__(
        self,
        bundle: OpenBundle,
        forms: tuple[BundleFormat, ...],
        budget_mib: float | None,
        tell: Callable[[str], None],
        *,
        prepares: bool = True,
        cache: Path | None = None,
        start_mib: float | None = None,
    ) -> None:
        for form in forms:
            require_runtime(CHAIN_FORMATS[form], str(bundle.folder))
        self.bundle, self.forms, self.budget_mib = bundle, forms, budget_mib

        def files(form: BundleFormat) -> PartFiles:
            is_prepared = prepares and CHAIN_FORMATS[form] == "onnx"
            settings = bundle.manifest.runs[form].settings
            prepared = PreparedFiles(bundle, settings, cache) if is_prepared else None
            return PartFiles(bundle, prepared, tell, waits=budget_mib is not None)

        self._beside = Beside()

        self.files = {form: files(form) for form in forms}
        self.tell, self._warned = tell, set[str]()
        self.serving: Callable[[], Collection[PoolPart]] = tuple
        self.placed: Mapping[str, PlacedRuns] = {}
        self._parts: dict[tuple[BundleFormat, str], PoolPart] = {}
        self._answerers: dict[Variant, Answerer] = {}
        self._lock = threading.RLock()
        self.start_mib = resident_mib() if start_mib is None else start_mib

    @property
    def form(self) -> BundleFormat:
        """The first format: that of variants that name none."""
        return self.forms[0]

    def answerer(self, variant: Variant) -> Answerer:
        """The answerer of a variant; a new one has nothing loaded yet. AdaptiveError if the bundle has no such variant."""
        known = self._answerers.get(variant)  # without the lock: another thread may hold it while it loads
        if known is not None:
            return known
        with self._lock:
            subnet, form = self._files_of(variant)
            named = self._named(subnet, form, variant)
            if named not in self._answerers:
                self._answerers[named] = self._described(named, subnet, form)
            return self._answerers[named]

    def whole_of(self, subnet: BundledSubNet) -> tuple[Variant, ...]:
        """A whole SubNet in each format that it has."""
        whole = Variant(subnet.digest)
        return tuple(self._named(subnet, form, whole) for form in self._forms_of(subnet))

    @property
    def whole_variants(self) -> tuple[Variant, ...]:
        """All SubNets, whole, in each format."""
        return tuple(variant for subnet in self.bundle.manifest.subnets for variant in self.whole_of(subnet))

    def variants(self) -> tuple[Variant, ...]:
        """All SubNets in each format, whole, and by thresholds if they have some."""
        early = [
            self._named(one, form, Variant(one.digest, early=True))
            for one in self.bundle.manifest.subnets
            for form in self._forms_of(one)
            if one.thresholds is not None and one.nets[form].chain is not None
        ]
        return (*self.whole_variants, *early)

    def prepare(self, answerer: Answerer) -> None:
        """Prepare the ONNX files of a variant that are not prepared yet; without a budget, beside requests.

        VariantError.
        """
        if answerer.chain.manifest.format != "onnx":
            return
        files = self.files[answerer.form]
        names = [_names(answerer.subnet, answerer.form, part.name) for part in answerer.parts]
        if files.waits:
            _guarded(partial(files.prepare, *names))
            return
        for part, own in zip(answerer.parts, names, strict=True):
            if files.is_early(own):
                self._beside.add((answerer.form, part.name), partial(self._prepare_beside, files, own, part))

    def finish_preparing(self) -> None:
        """Wait until all wanted files are prepared."""
        self._beside.wait()

    def warm(self, answerer: Answerer) -> None:
        """Load all parts that a variant needs to start. VariantError."""
        self.prepare(answerer)
        for part in answerer.needed:
            _guarded(partial(answerer.work, part.brought))

    def warm_ahead(self, answerer: Answerer) -> None:
        """Load the other parts of a variant, too, as far as memory allows. VariantError."""
        for part in answerer.parts:
            with self._lock:
                has_room = self._has_room(self.used_mib + part.need_mib)
                if has_room:
                    _guarded(partial(answerer.work, part.brought))

    @property
    def used_mib(self) -> float:
        """Growth of the process since the pool was made [MiB]; if that cannot be measured, the memory of loaded parts."""
        now_mib = resident_mib()
        if now_mib is None or self.start_mib is None:
            return sum(part.need_mib for part in self._parts.values() if part.value is not None)
        return max(0.0, now_mib - self.start_mib)

    @property
    def loaded(self) -> tuple[str, ...]:
        """Names of the parts in memory, the least recently used first."""
        found = [part for part in list(self._parts.values()) if part.value is not None]
        return tuple(part.name for part in sorted(found, key=lambda part: part.used))

    @property
    def warm_variants(self) -> tuple[Variant, ...]:
        """Variants that start without loading, the least recently used first."""
        found = [one for one in list(self._answerers.values()) if one.is_warm]
        return tuple(
            one.variant for one in sorted(found, key=lambda one: max((part.used for part in one.needed), default=0))
        )

    def holds(self, *answerers: Answerer) -> bool:
        """Whether the budget holds these variants at once, and nothing else."""
        loaded_mib = sum(part.kept_mib for part in self._parts.values() if part.value is not None)
        others_mib = max(0.0, self.used_mib - loaded_mib)
        wanted = {part for answerer in answerers for part in answerer.needed}
        loading_mib = max(part.need_mib - part.kept_mib for part in wanted)
        return self._has_room(others_mib + sum(part.kept_mib for part in wanted) + loading_mib)

    def keep_within_budget(self, room_mib: float = 0.0, keep: Collection[PoolPart] = ()) -> None:
        """Free parts until the budget has this much room, or only parts in use are left."""
        with self._lock:
            while not self._has_room(self.used_mib + room_mib):
                kept = {*self.serving(), *keep}
                idle = [part for part in self._parts.values() if part.value is not None and part not in kept]
                if not idle:
                    return
                min(idle, key=lambda part: part.used).value = None
                give_back()

    def free(self, answerer: Answerer) -> None:
        """Free the parts of a variant; they may be loaded again."""
        with self._lock:
            for part in answerer.parts:
                part.value = None
            give_back()

    def renew(self, answerer: Answerer, loads: Callable[[], Any] | None, value: Any = None) -> None:
        """Load a variant of one file in another way, or from its own file (None), from the next run on.

        value: the result of `loads`, if it exists already. Running requests end with the old one.
        """
        (part,) = answerer.parts
        wanted = part.own if loads is None else loads
        if value is None and part.value is not None:
            value = wanted()
        with self._lock:
            part.loads = wanted
            if part.value is not None:
                part.value = value

    def close(self) -> None:
        """Free everything after running requests have ended."""
        for files in self.files.values():
            if files.prepared is not None:
                files.prepared.stop()
        self._beside.close()
        with self._lock:
            self._answerers.clear()
            for part in self._parts.values():
                part.value = None
            self._parts.clear()
            give_back()

    def _loaded(self, form: BundleFormat, name: str, manifest: ChainManifest, names: tuple[str, ...]) -> Any:
        """A session of an ONNX file; of the original if its prepared form does not exist yet, to be replaced later."""
        files = self.files[form]
        is_early = files.is_early(names)
        session = files.session(manifest, names)
        if is_early:
            self._beside.add((form, name), partial(self._prepare_beside, files, names, self._parts[form, name]))
        return session

    def _prepare_beside(self, files: PartFiles, names: tuple[str, ...], part: PoolPart) -> None:
        """Prepare a file; a part that was loaded from the original file then serves from the prepared one."""
        try:
            _guarded(partial(files.prepare, names))
            before = part.value
            if before is None or files.prepared is None or files.is_early(names):
                return
            made: list[Any] = []
            _guarded(lambda: made.append(part.own()))
        except VariantError as error:  # the loaded part continues, and a request that loads it reports the error
            LOG.debug("%s: %s", names[0], error)
            return
        with self._lock:
            if part.value is before and part.loads is part.own:
                (part.value,) = made
        give_back()

    def _has_room(self, mib: float) -> bool:
        """Whether the budget has room if the process takes `mib`."""
        return self.budget_mib is None or mib + RESERVE_MIB <= self.budget_mib

    def _bring(self, part: PoolPart) -> Any:
        """The object of a part that was not loaded: other parts make room, and it is loaded now."""
        with self._lock:
            if (value := part.value) is not None:
                return value
            self.keep_within_budget(part.need_mib, {part})
            before_mib = self.used_mib
            value = part.loads()
            grown_mib = self.used_mib - before_mib  # includes temporary memory of loading
            give_back()
            part.grew(grown_mib, self.used_mib - before_mib)
            self._tell_excess(part, before_mib + grown_mib)
            part.value = value
            self.keep_within_budget(keep={part})
            return value

    def _tell_excess(self, part: PoolPart, used_mib: float) -> None:
        """Report once per part that the budget was exceeded while it was loaded."""
        if self.budget_mib is not None and used_mib > self.budget_mib and part.name not in self._warned:
            self._warned.add(part.name)
            self.tell(
                f"{part.name}: {used_mib:.1f} MiB while it was loaded; the memory budget is {self.budget_mib:g} MiB"
            )

    def _forms_of(self, subnet: BundledSubNet) -> tuple[BundleFormat, ...]:
        """The formats of the pool in which a SubNet serves."""
        return subnet.formats_among(self.forms)

    def _named(self, subnet: BundledSubNet, form: BundleFormat, variant: Variant) -> Variant:
        """A variant of a SubNet in a format; it names the format unless that is the SubNet's first."""
        return variant._replace(form=None if variant.placed or form == self._forms_of(subnet)[0] else form)

    def _files_of(self, variant: Variant) -> tuple[BundledSubNet, BundleFormat]:
        """The SubNet of a variant, and the format of its files. AdaptiveError if the bundle has no such variant."""
        found = self.bundle.manifest.by_digest.get(variant.digest)
        forms = () if found is None else self._forms_of(found)
        if found is None or not forms:
            known = [one.digest for one in self.bundle.manifest.subnets if self._forms_of(one)]
            raise AdaptiveError("SubNet", f"'{variant.digest}'", allowed=", ".join(known))
        form = forms[0] if variant.form is None else variant.form
        if form not in forms:
            raise AdaptiveError(f"SubNet {variant.digest}", f"format '{form}'", allowed=", ".join(forms))
        if variant.placed and (variant.digest not in self.placed or variant != variant.whole):
            got, allowed = "it runs on no other device", ", ".join(self.placed) or "none"
            raise AdaptiveError(f"SubNet {variant.files}", got, allowed=f"whole ones of {allowed}")
        return found, form

    def _described(self, variant: Variant, subnet: BundledSubNet, form: BundleFormat) -> Answerer:
        scale = scaling_of(subnet.preparation, subnet.input_shape)
        if variant.placed:
            over = self.placed[variant.digest]
            chain = ExitChain(self.bundle.whole(subnet, form), over(None, 1))
            return Answerer(variant, subnet, form, VariantInference(chain=chain, scale=scale), over=over)
        if variant.exit is None and not variant.early:
            manifest, decider = self.bundle.whole(subnet, form), None
        else:
            manifest = self.bundle.chain(subnet, form)
            decider = _decider(variant, subnet, manifest)
        joined = manifest.format == "onnx" and decider is None
        parts = (self._joined_parts if joined else self._parts_of)(subnet, form, manifest)
        last = len(parts) if decider is None else min(len(parts), decider.full_exit + 1)
        parts = parts[:last] if manifest.format == "onnx" else parts
        chain = ExitChain(manifest, runtime_of(manifest, parts))
        inference = VariantInference(chain=chain, decider=decider, scale=scale)
        needed = parts[:1] if variant.early else parts
        return Answerer(variant, subnet, form, inference, needed=needed, parts=parts)

    def _joined_parts(self, subnet: BundledSubNet, form: BundleFormat, manifest: ChainManifest) -> tuple[PoolPart, ...]:
        """The files of a whole SubNet in ONNX: one, or several that run one behind the other."""
        names, memory = subnet.nets[form].onnx_files, subnet.figures_of(form).memory
        need_mib = PROGRAM_MIB + memory.activations_mib + memory.weights_mib / len(names)
        return tuple(self._session(subnet, form, manifest, name, need_mib) for name in names)

    def _parts_of(self, subnet: BundledSubNet, form: BundleFormat, manifest: ChainManifest) -> tuple[PoolPart, ...]:
        memory, segments = subnet.figures_of(form).memory, manifest.segments
        start_mib = PROGRAM_MIB + memory.activations_mib
        if manifest.format == "ncnn":
            load = partial(self.files[form].net, manifest, self.bundle.folder)
            return (self._part(form, next(iter(manifest.files)), load, start_mib + memory.weights_mib),)
        macs = sum(segment.macs for segment in segments)
        found = []
        for segment in segments:
            need_mib = start_mib + memory.weights_mib * (segment.macs / macs if macs else 1.0)
            found.append(self._session(subnet, form, manifest, str(segment.file), need_mib))
        return tuple(found)

    def _session(
        self, subnet: BundledSubNet, form: BundleFormat, manifest: ChainManifest, name: str, need_mib: float
    ) -> PoolPart:
        """An ONNX file as a part."""
        return self._part(form, name, partial(self._loaded, form, name, manifest, _names(subnet, form, name)), need_mib)

    def _part(self, form: BundleFormat, name: str, load: Callable[[], Any], need_mib: float) -> PoolPart:
        """A part; variants of one format share it."""
        return self._parts.setdefault((form, name), PoolPart(name, load, need_mib, self._bring))


def _names(subnet: BundledSubNet, form: BundleFormat, name: str) -> tuple[str, ...]:
    """An ONNX file and its weights files."""
    return name, *subnet.nets[form].weights_files


def _guarded(load: Callable[[], Any]) -> None:
    try:
        load()
    except Exception as error:  # runtimes raise many kinds, none of them ours
        raise VariantError(failure(error)) from error


def _decider(variant: Variant, subnet: BundledSubNet, manifest: ChainManifest) -> Decider:
    """The decider of a variant. AdaptiveError for an unknown exit or missing thresholds."""
    where = f"SubNet {variant.digest}"
    if variant.early:
        if subnet.thresholds is None or variant.exit is not None:
            got = "no thresholds" if subnet.thresholds is None else f"thresholds and exit '{variant.exit}'"
            raise AdaptiveError(where, got, next_step="name an exit, or use the whole SubNet")
        return Decider(subnet.thresholds)
    if variant.exit not in manifest.exits:
        raise AdaptiveError(where, f"no exit '{variant.exit}'", allowed=", ".join(manifest.exits))
    return all_leave_at(manifest.exits.index(variant.exit))
