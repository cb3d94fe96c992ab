"""Numbers of the house: files, lines, short modules, parameters, packages and the arrows between them.

python -m benchmarks.house [--names] [--markdown]: tables, and the names behind each number.
"""

import argparse
import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import grimp

from benchmarks.tables import show

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("adaptive_runtime", "autotailor", "flows", "importing", "profiling_agents", "solvers", "tailor_ir", "tasks")
WITH_PACKAGES = ("tasks", "adaptive_runtime", "flows", "tailor_ir", "profiling_agents")
SHORT_LINES = 60
MOST_PARAMETERS = 7


@dataclass(frozen=True, kw_only=True)
class Module:
    """One source file of the product."""

    name: str
    path: Path
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@dataclass(frozen=True, kw_only=True)
class House:
    """All modules of the product, and who imports whom."""

    modules: dict[str, Module]
    graph: grimp.ImportGraph

    def short_modules(self) -> dict[str, str]:
        """Module below 60 lines with one importer -> the importer."""
        importers = {
            name: self.graph.find_modules_that_directly_import(name)
            for name, module in self.modules.items()
            if module.lines < SHORT_LINES and not module.is_package and not name.endswith("__main__")
        }
        return {name: min(found) for name, found in importers.items() if len(found) == 1}

    def handing_on(self) -> dict[str, str]:
        """Package whose `__init__` has nothing but names of one module -> this module."""
        handed = {}
        for name, module in self.modules.items():
            statements = [node for node in module.tree.body if not _is_docstring(node) and not _is_all(node)]
            sources = {node.module for node in statements if isinstance(node, ast.ImportFrom)}
            if module.is_package and statements and len(sources) == 1 and all(map(_is_import, statements)):
                handed[name] = str(sources.pop())
        return handed

    def parameters(self) -> dict[str, int]:
        """Function with more than 7 parameters (`self` and `cls` do not count) -> their number."""
        return {
            f"{name}:{node.name}": count
            for name, module in self.modules.items()
            for node in module.functions
            if (count := _parameters(node)) > MOST_PARAMETERS
        }

    def arrows(self, room: str) -> set[tuple[str, str]]:
        """Pairs of packages directly below a room of which the first imports the second."""
        inside = {
            name: name.removeprefix(room + ".").split(".")[0] for name in self.modules if name.startswith(room + ".")
        }
        return {
            (part, inside[needed])
            for name, part in inside.items()
            for needed in self.graph.find_modules_directly_imported_by(name)
            if inside.get(needed, part) != part
        }


def read(root: Path = ROOT) -> House:
    """Read all modules of the product below `root`."""
    modules = {}
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            modules[name] = Module(name=name, path=path, text=path.read_text(encoding="utf-8"))
    return House(modules=modules, graph=grimp.build_graph(*ROOMS, cache_dir=None))


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    names += [each.arg for each in (node.args.vararg, node.args.kwarg) if each is not None]
    return len([name for name in names if name not in ("self", "cls")])


def rows(house: House) -> list[tuple[str, int, int]]:
    """Room -> its files and lines; the whole product last."""
    found = []
    for room in (*ROOMS, "product"):
        lines = [each.lines for name, each in house.modules.items() if room in ("product", name.split(".")[0])]
        found.append((room, len(lines), sum(lines)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="also what is behind each number")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    house = read()
    sizes = [(room, f"{files:,}", f"{lines:,}", f"{1000 * files / lines:.1f}") for room, files, lines in rows(house)]
    show(("room", "files", "lines", "files for 1,000 lines"), sizes, markdown=arguments.markdown)
    packages = []
    for room in WITH_PACKAGES:
        arrows = house.arrows(room)
        circles = sum((second, first) in arrows for first, second in arrows) // 2
        packages.append((room, str(len({part for arrow in arrows for part in arrow})), str(len(arrows)), str(circles)))
    show(("inside of", "packages", "arrows", "pairs that import each other"), packages, markdown=arguments.markdown)
    found: dict[str, Mapping[str, str | int]] = {
        f"modules below {SHORT_LINES} lines with one importer": house.short_modules(),
        "packages that hand on one module": house.handing_on(),
        f"functions with more than {MOST_PARAMETERS} parameters": house.parameters(),
    }
    show(("found", "number"), [(name, str(len(each))) for name, each in found.items()], markdown=arguments.markdown)
    if arguments.names:
        for name, each in found.items():
            print(f"\n{name}:", *(f"  {key}: {value}" for key, value in sorted(each.items())), sep="\n")


if __name__ == "__main__":
    main()
