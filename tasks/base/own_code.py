"""The user's modules, and the origin of an exception in the user's code, as `FILE:LINE`.

Modules are found in the working folder first, and importable even if a package of AutoTailor has their name.
"""

import builtins
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError, shortened

INSTALLED = frozenset(("site-packages", "dist-packages"))
IMPORTABLE = "module:function, in the working folder or on the Python path, or FILE.py:function"
NAMES_LATER = re.compile(r"import \*|__getattr__|globals\(|vars\(|setattr\(|exec\(|sys\.modules")
"""Code that gives a module names which its text need not contain."""
ROOMS = ("adaptive_runtime", "conf", "flows", "profiling_agents", "importing", "solvers", "tailor_ir", "tasks")
HOME = Path(__file__).resolve().parents[2]
WORLD = "own_code_"
"""Prefix of the packages under which modules with taken names are imported."""


@dataclass(frozen=True, slots=True)
class UserModule:
    """The module `module` (dotted) below `folder`."""

    folder: Path
    module: str

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders in which the module finds other modules of the user: its own folder and the working folder."""
        here = Path.cwd()
        return (self.folder,) if here in (self.folder, HOME) or _is_library(self.folder) else (self.folder, here)


def source_of(name: str) -> UserModule | None:
    """The module of `module:function` (working folder, else Python path) or `FILE.py:function`; None if it is not found."""
    module = name.split(":")[0]
    if module.endswith(".py"):
        return _source_of_file(Path.cwd() / module)
    folders = [Path.cwd(), *(Path.cwd() / folder for folder in sys.path), *_folders_by_finders(module)]
    return next((UserModule(folder, module) for folder in folders if file_of(folder, module)), None)


def _folders_by_finders(module: str) -> list[Path]:
    """Folders of a package that Python finds without its path (projects in editable installation)."""
    try:
        spec = importlib.util.find_spec(module.split(".")[0])
    except (ImportError, ValueError, AttributeError):
        return []
    if spec is None or spec.origin is None:
        return []
    file = Path(spec.origin)
    return [file.parents[1] if file.name == "__init__.py" else file.parent]


def _source_of_file(file: Path) -> UserModule | None:
    """The module of a file, with the names of the packages that contain it."""
    if not file.is_file():
        return None
    parts, folder = [file.stem] if file.stem != "__init__" else [], file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return UserModule(folder, ".".join(parts))


def file_of(folder: Path, module: str) -> Path | None:
    """The source file of a module below `folder`; None if it does not exist."""
    path = folder.joinpath(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_name(f"{path.name}.py")) if file.is_file()), None)


def imported(source: UserModule) -> ModuleType:
    """The module, imported under its own name; if this is taken, inside a package that stands for its folders."""
    return importlib.import_module(source.module if _is_free(source) else f"{_world(source.folders)}.{source.module}")


@contextmanager
def findable(folders: Iterable[Path]) -> Iterator[None]:
    """Context in which modules of `folders` are found, after all others."""
    entries = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path.extend(entries)
    try:
        yield
    finally:
        for entry in entries:
            sys.path.remove(entry)


def own_names(text: str) -> str:
    """A message with the user's names of modules."""
    return re.sub(rf"\b{WORLD}[0-9a-f]+\.", "", text)


def _is_library(folder: Path) -> bool:
    return folder.resolve() == HOME or bool(INSTALLED.intersection(folder.parts))


def _is_free(source: UserModule) -> bool:
    """Whether Python itself finds the module there and none of the user's modules has the name of a package of AutoTailor."""
    if _is_library(source.folder):
        return True
    with findable(source.folders):
        spec = importlib.util.find_spec(source.module.split(".")[0])
    places = [] if spec is None else [*(spec.submodule_search_locations or [spec.origin or ""])]
    is_there = any(Path(place).resolve().parent == source.folder.resolve() for place in places)
    return is_there and not any(_has_code(source.folders, room) for room in ROOMS)


def _has_code(folders: Iterable[Path], module: str) -> bool:
    """Whether one of `folders` has this module, or a folder of its name with Python files, which is a package, too."""
    for folder in folders:
        path = folder.joinpath(*module.split("."))
        if file_of(folder, module) or any(any(path.glob(files)) for files in ("*.py", "*/*.py")):
            return True
    return False


def _world(folders: Sequence[Path]) -> str:
    """The name of a package of the modules in `folders`, in which they find each other by their own names."""
    name = f"{WORLD}{digest_of([str(folder) for folder in folders])[:8]}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(folder) for folder in folders]
        sys.meta_path.insert(0, _Finder(name, folders))
        sys.modules[name] = package
    return name


class _Finder(MetaPathFinder):
    """Finds modules of a world like Python does, and gives them their own `import`."""

    def __init__(self, world: str, folders: Sequence[Path]) -> None:
        self._world, self._folders = world, folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{self._world}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):  # also the loaders of others' import hooks
            spec.loader = _Loader(self, fullname, spec.loader.path)
        return spec

    def bring(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__` of the user's modules: modules in the folders come from there, all others from Python."""
        if level or not _has_code(self._folders, name):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(f"{self._world}.{name}", globals, locals, fromlist or (), 0)
        first: ModuleType = module if fromlist else getattr(module, name.split(".")[0])
        return first


class _Loader(SourceFileLoader):
    """Runs a module whose `import` statements use a finder."""

    def __init__(self, finder: _Finder, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._finder = finder

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._finder.bring}
        super().exec_module(module)


USERS_ENDS = (Exception, SystemExit)
"""Errors of the user's code. SystemExit is one: `sys.exit(0)` there would end the whole command as if it had succeeded."""


def described(error: BaseException, folder: str | None) -> str:
    """Type and message of an exception, and the innermost line below `folder` in its traceback."""
    kind, message = type(error).__name__, own_names(shortened(error))
    text = f"{kind} ({message})" if message else kind
    place = None if folder is None else line_of(error, folder)
    return f"{text} at {place}" if place else text


def line_of(error: BaseException, folder: str) -> str | None:
    """FILE:LINE of the innermost line below `folder` in the exception's traceback; for a syntax error, its own position."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_below(frame.filename, folder)]
    return f"{_shown(frames[-1].filename)}:{frames[-1].lineno}" if frames else None


def _is_below(file: str, folder: str) -> bool:
    path = Path(file)
    return path.is_relative_to(folder) and not INSTALLED.intersection(path.parts)


def _shown(file: str) -> str:
    """The path, relative to the working folder if it is inside."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


LIVE: dict[str, Any] = {}
"""Objects of the process that calls AutoTailor from Python, by their names in settings (`LIVE_NAME`:digest)."""
LIVE_NAME = "live"


def is_live(name: str | None) -> bool:
    """Whether settings name an object of this process, which no other process has."""
    return name is not None and name.startswith(f"{LIVE_NAME}:")


class UserFunction:
    """A function of the user, by `module:function` (in the working folder, or on the Python path) or `FILE.py:function`.

    Its errors are one line with the line of the user's code. where: the option that names it, for messages.
    """

    def __init__(self, where: str, name: str) -> None:
        """Import it. UserError: it does not exist, or its module fails."""
        self.where, self.folder = where, code_folder(name)
        self._source = None if is_live(name) else source_of(name)
        if is_live(name) and name not in LIVE:
            raise UserError(
                where,
                "is an object of the process that called autotailor.tailor",
                next_step="call it again from Python, or name a function: FILE.py:function",
            )
        with self._findable():
            self.function: Any = LIVE[name] if is_live(name) else _imported(where, name, self._source)

    def taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of `given` for which the function has parameters."""
        try:
            parameters = inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # built in
            return {}
        any_name = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        return {name: value for name, value in given.items() if any_name or name in parameters}

    def __call__(self, allowed: str, remedy: str, /, *given: Any, **named: Any) -> Any:
        """Call it. UserError if it fails. allowed: its parameters. remedy: the next step besides mending it."""
        with self._findable():
            try:
                return self.function(*given, **named)
            except USERS_ENDS as error:
                if isinstance(error, TypeError) and line_of(error, self.folder) is None:  # before its first line
                    raise UserError(self.where, f"cannot be called ({error})", allowed=allowed) from error
                raise UserError(
                    self.where,
                    f"raises {described(error, self.folder)}",
                    next_step=_taken(error) or f"mend it, or {remedy}",
                ) from error

    def _findable(self) -> AbstractContextManager[None]:
        return findable((Path.cwd(),) if self._source is None else self._source.folders)


def _imported(where: str, name: str, source: UserModule | None) -> Callable[..., Any]:
    module, function_name = name.split(":")
    if source is None and module.endswith(".py"):
        raise _no_file(where, module)
    try:
        found = importlib.import_module(module) if source is None else imported(source)
        function: Callable[..., Any] = getattr(found, function_name)
    except USERS_ENDS as error:
        line = line_of(error, code_folder(name))
        if line is None and isinstance(error, ImportError | AttributeError):
            raise UserError(where, f"cannot be imported ({own_names(str(error))})", allowed=IMPORTABLE) from error
        raise UserError(
            where,
            f"cannot be imported: {described(error, code_folder(name))}",
            next_step=_taken(error) or "mend it, or name another function",
        ) from error
    return function


def _taken(error: BaseException) -> str:
    """The advice if a user's module was searched in a package of AutoTailor with the same name; "" for other errors."""
    room = (getattr(error, "name", None) or "").split(".")[0] if isinstance(error, ImportError) else ""
    if room not in ROOMS:
        return ""
    return (
        f"AutoTailor has a package '{room}', too: import statements find yours, "
        f"importlib.import_module and pickle do not; rename yours"
    )


def code_folder(name: str) -> str:
    """The folder that holds the module of a callable, or its package; the working folder if the module is not found."""
    source = source_of(name)
    return str(Path.cwd() if source is None else source.folder)


def _no_file(where: str, module: str) -> UserError:
    return UserError(where, f"there is no file '{module}'", allowed="FILE.py:function, or module:function")


def check_source(where: str, name: str) -> None:
    """Raise UserError if the file of `FILE.py:function` does not exist, or a module never names the function. Nothing is
    imported.
    """
    if is_live(name):
        return
    module, function = name.split(":")
    source, is_file = source_of(name), module.endswith(".py")
    if source is None:
        if is_file:
            raise _no_file(f"{where} '{name}'", module)
        return
    file = Path(module) if is_file else file_of(source.folder, source.module)
    assert file is not None
    text = file.read_text(errors="replace")
    if not re.search(rf"\b{re.escape(function)}\b", text) and not NAMES_LATER.search(text):
        got = f"cannot be imported (module '{file.stem if is_file else module}' has no attribute '{function}')"
        raise UserError(f"{where} '{name}'", got, allowed=IMPORTABLE)


def is_function_name(name: str) -> bool:
    """Whether a name has the form `module:function` or `FILE.py:function`."""
    return name.count(":") == 1 and all(name.split(":"))
