"""Parts that all HTML pages share: a self-contained frame, a style, escaping, numbers as short text."""

import json
from importlib import resources

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tasks.base.pages import text

STYLE_FILE = "style.css"


def environment(package: str) -> Environment:
    """Templates of `package`, which may extend `base.html`. Every text is escaped; an unknown name raises."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader(__name__, ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "amount": text.amount,
        "bytes": text.size,
        "count": text.count,
        "ms": text.milliseconds,
        "millions": text.millions,
        "percent": text.percent,
        "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
    }
    return found


def style(package: str) -> Markup:
    """The shared style, followed by the style of `package`."""
    return Markup("\n").join(_read(name, STYLE_FILE) for name in (__name__, package))


def script(package: str, name: str) -> Markup:
    """A script of `package`, to be inlined in the page."""
    return _read(package, name)


def _read(package: str, name: str) -> Markup:
    return Markup(resources.files(package).joinpath(name).read_text(encoding="utf-8"))
