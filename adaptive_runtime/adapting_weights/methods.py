"""What a way to adapt needs besides what the run time needs in any case."""

from adaptive_runtime.adapting_weights.settings import WeightOptions
from adaptive_runtime.errors import AdaptiveError

EXTRA = "autotailor_runtime-VERSION-py3-none-any.whl[adapt]"


def load_method(options: WeightOptions) -> WeightOptions:
    """The options, after what their method needs has been imported.

    That takes seconds and memory, and holds up other threads: so it is done before the first request is answered.
    AdaptiveError: it is not installed.
    """
    if options.method != "statistics":
        try:
            from adaptive_runtime.adapting_weights import gradients  # noqa: F401
        except ImportError as error:
            where, got = f"weights '{options.method}'", f"gradients need torch and onnx ({error})"
            raise AdaptiveError(where, got, next_step=f"pip install '{EXTRA}', or adapt by 'statistics'") from error
    return options
