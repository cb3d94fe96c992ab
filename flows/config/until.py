"""The command up to whose last stage a run goes. Flat lists: forms show a union of lists as types."""

from typing import Literal

RunStage = Literal[
    "compile", "finetune", "enumerate", "plan", "profile", "predict", "search", "stream", "export", "report"
]
AdaptStage = Literal["enumerate", "plan", "profile", "predict", "search", "export", "report"]
