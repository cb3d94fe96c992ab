"""Extra dependencies of the adaptation methods."""

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.weight_options import WeightOptions

EXTRA = "autotailor_runtime-VERSION-py3-none-any.whl[adapt]"


def load_method(options: WeightOptions) -> WeightOptions:
    """The options, after importing the dependencies of their method.

    The import takes seconds and memory and blocks other threads, so it happens before the first request is answered.
    AdaptiveError: a dependency is not installed.
    """
    if options.method != "statistics":
        try:
            from adaptive_runtime.weights import gradients  # noqa: F401
        except ImportError as error:
            where, got = f"weights '{options.method}'", f"gradients need torch and onnx ({error})"
            raise AdaptiveError(where, got, next_step=f"pip install '{EXTRA}', or adapt by 'statistics'") from error
    return options
